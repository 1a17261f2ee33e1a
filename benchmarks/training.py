"""The training step and the forward pass of a configuration on random pictures, as benchmarks call them."""

import argparse
import ast
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.compilation import known_spec
from attn_cnn_jax.config import attention_config, create_model, validate
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.builders import SPECS
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.mesh import Pictures, place
from attn_cnn_jax.training.muon import matrices
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate
from attn_cnn_jax.training.step import create_train_steps, initial_state, most_steps


def add_common(parser: argparse.ArgumentParser, batch_size: int) -> None:
    """Options of every benchmark of the paper's network."""
    parser.add_argument("--batch_size", type=int, default=batch_size)
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--json", metavar="FILE", help="also write what was measured there")
    parser.add_argument(
        "--set", type=setting, nargs="*", default=[], metavar="KEY=VALUE", help="such as model.num_heads=4"
    )


def setting(text: str) -> tuple[str, Any]:
    """`model.num_layers=1 -> ("model.num_layers", 1)`; argparse exits 2 on a ValueError."""
    key, _, value = text.partition("=")
    try:
        return key, ast.literal_eval(value)
    except SyntaxError as error:
        raise ValueError from error


def configuration(options: argparse.Namespace) -> ConfigDict:
    """The paper's `quadratic` with the options of `add_common`."""
    config = attention_config()
    config.update_from_flattened_dict(dict(options.set))
    return with_chosen(config, options, {"train.batch_size": options.batch_size})


def with_chosen(config: ConfigDict, options: argparse.Namespace, values: Mapping[str, Any]) -> ConfigDict:
    """The configuration with the values that a benchmark chooses, by key; UserError where `--set` has one of them."""
    for key, _ in options.set:
        if key in values:
            raise UserError(f"--set {key}: chosen by the benchmark; see its --help")
    config.update_from_flattened_dict(values)
    validate(config)
    return config


def random_pictures(config: ConfigDict, count: int, mesh: Mesh) -> Pictures:
    """A data set of uniform noise in the configuration's picture shape."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, *config.model.image_shape), dtype=np.uint8)
    return place(Pictures(images, generator.integers(0, config.model.num_classes, count).astype(np.int32)), mesh)


def steps_and_state(config: ConfigDict, mesh: Mesh) -> tuple[Callable, TrainState]:
    """The jitted `train_steps(state, pictures, count)` of a run, and a state that it may begin with."""
    network = create_model(config.model, rngs=nnx.Rngs(config.seed))
    epochs, steps_per_epoch = 300, 500
    schedule = learning_rate(config.optimizer, epochs, steps_per_epoch)
    optimizer = create_optimizer(config.optimizer, schedule, shaped=matrices(network))
    skeleton, state = initial_state(network, optimizer)
    train_steps = create_train_steps(config, mesh, skeleton, optimizer, known_spec(config))
    return train_steps, place(state, mesh)


def training(config: ConfigDict, mesh: Mesh, pictures: Pictures) -> Callable[[int], np.ndarray]:
    """`train(count)`: trains that many steps, at the start of the first epoch, and waits; the losses `(count,)`."""
    return repeated(*steps_and_state(config, mesh), mesh, pictures, most_steps(config, mesh))


def repeated(
    train_steps: Callable, state: TrainState, mesh: Mesh, pictures: Pictures, most: int
) -> Callable[[int], np.ndarray]:
    """`training` by steps of which a call does at most some; compiled ones too."""
    held = {"state": state}

    def train(count: int) -> np.ndarray:
        held["state"] = held["state"]._replace(step=place(np.int32(0), mesh))
        losses = []
        for first in range(0, count, most):
            at_once = min(most, count - first)
            held["state"], results = train_steps(held["state"], pictures, jnp.int32(at_once))
            losses.append(np.asarray(jax.device_get(results["loss"]))[:at_once])
        return np.concatenate(losses)

    return train


def inference(config: ConfigDict, mesh: Mesh, pictures: Pictures) -> Callable[[int], None]:
    """`predict(count)`: the logits of a batch, that many times, by the network merged for inference."""
    network = create_model(config.model, rngs=nnx.Rngs(config.seed))
    skeleton, *arrays = split(merged(network, config.model.image_shape))
    predict = jax.jit(lambda arrays, images: join(skeleton, *arrays)(images)[0])
    spec, images = SPECS["cifar10"], pictures.images[: config.train.batch_size]
    images = jax.block_until_ready(normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype)))

    def predict_times(count: int) -> None:
        for _ in range(count):
            logits = predict(arrays, images)
        jax.block_until_ready(logits)

    return predict_times
