"""Compiles what a run executes, its training steps and its evaluation, for a mesh of any devices."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.data.builders import SPECS, Spec
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.evaluate import create_evaluate
from attn_cnn_jax.training.mesh import Pictures, replicated
from attn_cnn_jax.training.muon import matrices
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate
from attn_cnn_jax.training.step import create_train_steps


def known_spec(config: ConfigDict) -> Spec:
    """Returns what is known of the data set of a configuration without the data.

    Raises:
      UserError: if its number and size of pictures are not.
    """
    if config.dataset.name not in SPECS:
        allowed = f"one of {', '.join(SPECS)}, whose number and size of pictures are known without the data"
        raise UserError(f"config.dataset.name={config.dataset.name!r}: to compile, allowed is {allowed}")
    return SPECS[config.dataset.name]


class Lengths(NamedTuple):
    """How much a run of a configuration does, by the official sizes of its data set."""

    steps: int
    evaluations: int

    @classmethod
    def of(cls, config: ConfigDict) -> "Lengths":
        """Those of a complete configuration; the validation split is evaluated with the test set."""
        epochs, every = config.train.num_epochs, config.train.eval_every_epochs
        steps_per_epoch = (known_spec(config).train_examples - config.dataset.num_validation) // config.train.batch_size
        return cls(epochs * steps_per_epoch, -(-epochs // every))


class Lowered(NamedTuple):
    """The programs of a run, traced and not yet compiled."""

    training: jax.stages.Lowered
    evaluation: jax.stages.Lowered


def lower(config: ConfigDict, mesh: Mesh) -> Lowered:
    """Traces the programs of a run for a mesh; nothing is computed and no data is read.

    A network that starts from another run (`config.start`) is taken as `config.model` describes it, and every step as
    one on whole pictures: one program has both kinds of steps of `config.augment.half_size_until`.

    Args:
      config: complete.
      mesh: devices, also those of a topology that this machine does not have.
    """
    spec = known_spec(config)
    config = config.copy_and_resolve_references()
    config.augment.half_size_until = 0.0
    steps_per_epoch = max(1, Lengths.of(config).steps // config.train.num_epochs)
    schedule = learning_rate(config.optimizer, config.train.num_epochs, steps_per_epoch)
    network = abstract_model(config.model)
    optimizer = create_optimizer(config.optimizer, schedule, shaped=matrices(network))
    skeleton, parameters, statistics = split(network)
    moments = jax.eval_shape(optimizer.init, parameters)
    step: Any = shape((), jnp.int32)
    state = on_mesh(TrainState(step, parameters, statistics, moments), mesh)
    train_set, test_set = (
        Pictures(*on_mesh((shape((count, *spec.image_shape), jnp.uint8), shape((count,), jnp.int32)), mesh))
        for count in (spec.train_examples - config.dataset.num_validation, spec.test_examples)
    )
    count = on_mesh(shape((), jnp.int32), mesh)
    return Lowered(
        create_train_steps(config, mesh, skeleton, optimizer, spec, steps_per_epoch).lower(state, train_set, count),
        create_evaluate(config, mesh, skeleton, spec).lower(state, test_set),  # pyright: ignore
    )


def shape(size: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """The shape of an array."""
    return jax.ShapeDtypeStruct(size, np.dtype(dtype))


def on_mesh(tree: Any, mesh: Mesh) -> Any:
    """Shapes of arrays that every device of a mesh holds whole."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)), tree)
