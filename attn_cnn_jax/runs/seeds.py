"""Reads runs of several seeds, as version 0.1.0 could train them in one program. Today a run has one seed.

Such a run has the seeds `config.seed`, `config.seed + 1`, ...: its arrays have one axis more, the first, over them;
its records one field more, `seed`; and the validation accuracy of a checkpoint is a list.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError

MOST_SEEDS = 10_000  # that version 0.1.0 allowed


def seeds_of(saved: ConfigDict) -> range:
    """Returns the seeds of a run, from its configuration as it was saved; UserError if it makes no sense."""
    train = saved.get("train")
    first, count = saved.get("seed", 0), train.get("num_seeds", 1) if isinstance(train, ConfigDict) else 1
    if not isinstance(first, int) or not isinstance(count, int) or not 1 <= count <= MOST_SEEDS:
        raise UserError(f"config.train.num_seeds={count!r} from config.seed={first!r}: allowed is 1 to {MOST_SEEDS:,}")
    return range(first, first + count)


def pick(tree: Any, seeds: range, seed: int) -> Any:
    """Returns the part of a seed from a tree of arrays over all `seeds`."""
    return tree if len(seeds) == 1 else jax.tree.map(lambda array: array[seeds.index(seed)], tree)


def mean_record(records: Sequence[dict]) -> dict:
    """Returns the records of one moment as one: the record itself, or the mean over seeds of what all have measured.

    A mean has in addition the number of `seeds`, and `loss_std` and `accuracy_std`, the standard deviation of a
    sample (over n - 1).
    """
    first, *others = records
    if not others:
        return first
    shared = [name for name in first if all(name in record for record in others)]
    numbers = [name for name in shared if name not in ("step", "epoch", "split", "seed")]
    mean = {name: float(np.mean([record[name] for record in records])) for name in numbers}
    measured = [name for name in ("loss", "accuracy") if name in numbers]  # imported weights come without a loss
    std = {f"{name}_std": float(np.std([record[name] for record in records], ddof=1)) for name in measured}
    where = {name: first[name] for name in ("step", "epoch", "split")}
    return where | {"seeds": len(records)} | mean | std
