"""Training steps and predictions of a configuration on random images, as benchmarks call them: ours and PyTorch's."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax import compiling
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import create_model, spec_of, validate
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.sets import SPECS, Split
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.mesh import data_mesh, place
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate, matrices
from attn_cnn_jax.training.step import create_train_steps, initial_state, most_steps
from benchmarks.measure import peak_bytes, seconds, turns

# A process that times takes of a GPU what it needs, and leaves the rest to the other library.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

SPEC = SPECS["cifar10"]


def add_common(parser: argparse.ArgumentParser, batch_size: int, repeats: int) -> None:
    """Options of every benchmark of the paper's network."""
    parser.add_argument("--batch_size", type=int, default=batch_size)
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=repeats, help="turns")
    parser.add_argument("--json", metavar="FILE", help="also write what was measured there")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="such as model.num_heads=4")


def configuration(options: argparse.Namespace, **model: Any) -> ConfigDict:
    """The paper's `quadratic` with the options of `add_common` and values of `config.model` that a benchmark chooses.

    Raises:
      UserError: `--set` names a value that the benchmark chooses, or one that is not allowed.
    """
    config = load_config("quadratic", [f"--config.{each}" for each in options.set])
    chosen = {f"model.{key}": value for key, value in ({"num_layers": options.num_layers} | model).items()}
    chosen["train.batch_size"] = options.batch_size
    if taken := chosen.keys() & {each.partition("=")[0] for each in options.set}:
        raise UserError(f"--set {min(taken)}: chosen by the benchmark; see its --help")
    config.update_from_flattened_dict(chosen)
    validate(config)
    return config


def random_images(config: ConfigDict, count: int, mesh: Mesh) -> Split:
    """A data set of uniform noise in the configuration's image shape."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, *config.model.image_shape), dtype=np.uint8)
    return place(Split(images, generator.integers(0, config.model.num_classes, count).astype(np.int32)), mesh)


def steps_and_state(config: ConfigDict, mesh: Mesh) -> tuple[Callable, TrainState]:
    """The jitted `train_steps(state, images, count)` of a run, and a state that it may begin with."""
    network = create_model(config.model, rngs=nnx.Rngs(config.seed))
    schedule = learning_rate(config.optimizer, 300, 500)  # epochs, steps per epoch
    optimizer = create_optimizer(config.optimizer, schedule, shaped=matrices(network))
    skeleton, state = initial_state(network, optimizer)
    return create_train_steps(config, mesh, skeleton, optimizer, spec_of(config)), place(state, mesh)


def training(config: ConfigDict, mesh: Mesh, images: Split) -> Callable[[int], np.ndarray]:
    """`train(count)`: trains that many steps, at the start of the first epoch, and waits; the losses `(count,)`."""
    return repeated(*steps_and_state(config, mesh), mesh, images, most_steps(config, mesh))


def repeated(
    train_steps: Callable, state: TrainState, mesh: Mesh, images: Split, most: int
) -> Callable[[int], np.ndarray]:
    """`training` by a function that does at most some steps per call; also a compiled one."""
    held = {"state": state}

    def train(count: int) -> np.ndarray:
        held["state"] = held["state"]._replace(step=place(np.int32(0), mesh))
        losses = []
        for first in range(0, count, most):
            at_once = min(most, count - first)
            held["state"], results = train_steps(held["state"], images, jnp.int32(at_once))
            losses.append(np.asarray(jax.device_get(results["loss"]))[:at_once])
        return np.concatenate(losses)

    return train


def inference(config: ConfigDict, mesh: Mesh, images: Split) -> Callable[[int], None]:
    """`predict(count)`: the logits of a batch, that many times, by the network merged for inference."""
    network = create_model(config.model, rngs=nnx.Rngs(config.seed))
    skeleton, *arrays = split(merged(network, config.model.image_shape))
    predict = compiling.jit(lambda arrays, batch: join(skeleton, *arrays)(batch)[0])
    spec = spec_of(config)
    batch = normalise(images.images[: config.train.batch_size], spec.mean, spec.std, jnp.dtype(config.model.dtype))
    jax.block_until_ready(batch)

    def predict_times(count: int) -> None:
        for _ in range(count):
            logits = predict(arrays, batch)
        jax.block_until_ready(logits)

    return predict_times


TASKS = {"training": training, "inference": inference}


def contender(task: str, name: str, config: ConfigDict) -> Callable[[int], Any]:
    """A function that trains or answers so many times and waits: "ours", or PyTorch's, "eager" or "compiled"."""
    if name != "ours":
        from benchmarks import pytorch

        return getattr(pytorch, task)(config, compiled=name == "compiled")
    mesh = data_mesh(jax.devices()[:1])
    return TASKS[task](config, mesh, random_images(config, 10 * config.train.batch_size, mesh))


def alternating(
    task: str, names: Sequence[str], config: ConfigDict, repeats: int, steps: int
) -> Mapping[str, list[float]]:
    """Seconds per step in each turn, by contender; all in this process, turn by turn."""
    functions = {}
    for name in names:
        function = contender(task, name, config)
        function(1)  # compile
        functions[name] = lambda function=function: function(steps)
    return {name: [turn / steps for turn in times] for name, times in turns(functions, repeats).items()}


def by_itself(task: str, name: str, config: ConfigDict, repeats: int) -> tuple[list[float], dict[str, int]]:
    """Seconds of some turns of one contender, and the bytes it takes, in a process that does nothing else.

    Returns:
      Seconds, and bytes, on a GPU those of the device: `imports`, before anything was made; `peak`, compiling included.
    """
    if name != "ours":
        import torch

        import benchmarks.pytorch  # noqa: F401
    imports = peak_bytes()
    function = contender(task, name, config)
    function(1)
    times = [seconds(lambda: function(1)) for _ in range(repeats)]
    if jax.default_backend() == "gpu":
        ours = name == "ours"
        peak = jax.devices()[0].memory_stats()["peak_bytes_in_use"] if ours else torch.cuda.max_memory_allocated()
        return times, {"imports": 0, "peak": peak}
    return times, {"imports": imports, "peak": peak_bytes()}
