"""Several networks that learn in one program: a run's seeds are `config.seed`, `config.seed + 1`, ...

Each learns as in a run of its own: same numbers, to rounding. What a run keeps of several seeds has one axis
more, the first, in arrays, and one field more, `seed`, in records; what it keeps of a single seed has neither.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict


def seeds_of(config: ConfigDict) -> range:
    """The seeds of a run."""
    return range(config.seed, config.seed + config.train.num_seeds)


def stack(trees: Sequence[Any]) -> Any:
    """One tree a seed as one tree of all."""
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *trees) if len(trees) > 1 else trees[0]


def pick(config: ConfigDict, tree: Any, seed: int) -> Any:
    """A seed's part of a tree of all."""
    return tree if config.train.num_seeds == 1 else jax.tree.map(lambda array: array[seed - config.seed], tree)


def per_seed(config: ConfigDict, where: dict, numbers: dict[str, Any]) -> list[dict]:
    """Records of one moment, one a seed.

    Args:
      where: what begins each record, such as `step`.
      numbers: by name, one number for all seeds or `(seeds,)`.
    """
    if config.train.num_seeds == 1:
        return [where | {name: float(number) for name, number in numbers.items()}]
    columns = {name: np.broadcast_to(number, config.train.num_seeds) for name, number in numbers.items()}
    return [
        where | {"seed": seed} | {name: float(column[n]) for name, column in columns.items()}
        for n, seed in enumerate(seeds_of(config))
    ]


def mean_record(records: Sequence[dict]) -> dict:
    """Records of one moment as one: of several seeds their mean, and `seeds`, `loss_std` and `accuracy_std`.

    The standard deviation is that of a sample (over n - 1).
    """
    first, *others = records
    if not others:
        return first
    numbers = [name for name in first if name not in ("step", "epoch", "split", "seed")]
    mean = {name: float(np.mean([record[name] for record in records])) for name in numbers}
    std = {f"{name}_std": float(np.std([record[name] for record in records], ddof=1)) for name in ("loss", "accuracy")}
    where = {name: first[name] for name in ("step", "epoch", "split")}
    return where | {"seeds": len(records)} | mean | std


def over_seeds(config: ConfigDict, function: Callable, *, looped: bool = True) -> Callable:
    """A function of one seed as a function of all seeds of a run.

    Args:
      looped: whether seeds may be computed in a loop of the program; else its text is repeated for each.
      function: `function(seed, state, *more)`; `seed` is a number, or a traced integer.

    Returns:
      `f(state, *more)`: states and results stacked, `more` the same for all seeds.
    """
    if config.train.num_seeds == 1:
        return functools.partial(function, config.seed)
    # A CPU is busy with one network, whose arrays its caches may hold (digits, 2 cores: 5 seeds took 4.8 times as
    # long as one in turn, 5.6 times under one vmap); an accelerator is not.
    at_once = config.train.seeds_at_once or (1 if jax.default_backend() == "cpu" else config.train.num_seeds)
    batch_size = at_once if at_once > 1 else None  # not a vmap over a single one
    seeds = np.array(seeds_of(config), np.int32)

    def of_all(state, *more):
        if not looped:
            return stack([function(seed, pick(config, state, seed), *more) for seed in seeds_of(config)])
        return jax.lax.map(lambda one: function(*one, *more), (seeds, state), batch_size=batch_size)

    return of_all
