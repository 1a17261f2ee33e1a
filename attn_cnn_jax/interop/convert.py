"""A network of the authors' release as a run's state, and back."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.config.network import abstract_model, encoding_of, head_size
from attn_cnn_jax.data.builders import SPECS
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.architecture import listed, network_config
from attn_cnn_jax.interop.names import pytorch_name, to_pytorch, transposed_back
from attn_cnn_jax.interop.release_file import BATCHES, MOST_STEPS, Checkpoint
from attn_cnn_jax.models.resnet import BLOCKS
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.training.optimizer import create_optimizer

# Of `config.model`: what names and shapes of arrays do not tell, as the release has it.
NOT_IN_A_FILE = {"activation": "gelu", "layer_norm_epsilon": 1e-12}


def to_run(checkpoint: Checkpoint) -> tuple[ConfigDict, TrainState]:
    """Returns the run's configuration, and a state whose optimizer has not moved yet.

    Raises:
      UserError: with the names, if arrays are missing, unknown or of another shape; or for a step out of range.
    """
    arrays = dict(checkpoint.arrays)
    counts = [count(name, arrays.pop(name)) for name in list(arrays) if name.endswith(BATCHES)]
    config = network_config({name: array.shape for name, array in arrays.items()})
    if drop_copies(arrays, config.model):
        config.model.share_tables = True
    abstract = split(abstract_model(config.model))[1:]
    ours = {pytorch_name(name, stages(config.model)): name for group in abstract for name in group}
    check_names(arrays, ours, abstract[0] | abstract[1])
    network = {ours[name]: jnp.asarray(transposed_back(ours[name], array)) for name, array in arrays.items()}
    parameters, statistics = ({name: network[name] for name in group} for group in abstract)
    steps = checkpoint.step
    if steps is None:
        steps = counts[0] if counts else steps_of(checkpoint.epoch, config)
    optimizer = create_optimizer(config.optimizer, lambda step: 0.0).init(parameters)
    return config, TrainState(jnp.int32(steps), parameters, statistics, optimizer)


def count(name: str, array: np.ndarray) -> int:
    """Returns the number of steps that one of the file's counters holds; UserError if it holds something else."""
    if array.shape or array.dtype != np.int64:
        raise UserError(f"{name} has the shape {array.shape} and type {array.dtype}: allowed is one integer")
    if not 0 <= array <= MOST_STEPS:
        raise UserError(f"{name}={int(array)}: allowed is 0 to {MOST_STEPS:,} steps")
    return int(array)


def stages(model: ConfigDict) -> tuple[int, ...] | None:
    """Returns the number of blocks in each stage of a ResNet; None for an attention network."""
    return BLOCKS[model.depth] if model.name == "resnet" else None


def steps_of(epoch: int | None, config: ConfigDict) -> int:
    """Returns how many steps a run here would have done after an epoch (from 0); UserError if that is too many."""
    if epoch is None:
        return 0
    steps_per_epoch = SPECS[config.dataset.name].train_examples // config.train.batch_size
    if (epoch + 1) * steps_per_epoch > MOST_STEPS:
        raise UserError(f"epoch={epoch:,}: allowed is 0 to {MOST_STEPS // steps_per_epoch - 1:,}")
    return (epoch + 1) * steps_per_epoch


def drop_copies(arrays: dict[str, np.ndarray], model: ConfigDict) -> bool:
    """Returns whether all layers have the same position tables; then only those of the first layer are kept."""
    if model.name != "attention" or not encoding_of(model).has_tables or model.num_layers == 1:
        return False
    table = "encoder.layer.{}.attention.self.{}".format
    tables = [name for ours, name in encoding_of(model).release.items() if ours.startswith("tables.")]
    copies = {table(n, name): table(0, name) for n in range(1, model.num_layers) for name in tables}
    same = all(name in arrays and np.array_equal(arrays[name], arrays[first]) for name, first in copies.items())
    for name in copies if same else ():
        del arrays[name]
    return same


def check_names(arrays: Mapping[str, np.ndarray], ours: Mapping[str, str], abstract: Mapping) -> None:
    """Raises UserError that lists arrays that are missing, unknown, or of a shape that the others do not allow."""
    problems = {"missing": [name for name in ours if name not in arrays]}
    problems["unknown"] = [name for name in arrays if name not in ours]
    problems["of another shape than the rest asks for"] = [
        f"{name} {arrays[name].shape}"
        for name, our_name in ours.items()
        if name in arrays and transposed_back(our_name, arrays[name]).shape != abstract[our_name].shape
    ]
    if any(problems.values()):
        found = "; ".join(f"{what}: {listed(names)}" for what, names in problems.items() if names)
        raise UserError(f"not a network of the authors' release\n{found}")


def check_release_has(run: Run) -> None:
    """Raises UserError unless the release can load the run's network."""
    model, which = run.config.model, None
    if model.name == "resnet":
        which = "layers" if model.layers != "convolution" else None
    elif not encoding_of(model).release:
        which = "encoding"
    elif model.gate:
        which = "gate"
    elif model.stem != "none":
        which = "stem"
    elif model.content and not encoding_of(model).release_content:
        which = "content"
    elif head_size(model) != model.hidden_size and (model.content or head_size(model) < model.hidden_size):
        which = "head_size"
    elif encoding_of(model).has_tables and model.image_shape[0] != model.image_shape[1]:
        which = "image_shape"  # its row and column tables have one size
    if which:
        raise UserError(
            f"config.model.{which}={model[which]!r}: the authors' release has no such network; it has quadratic "
            "encodings, learned relative ones of square pictures, heads of the hidden size, and ResNets"
        )
    for key, value in NOT_IN_A_FILE.items() if model.name == "attention" else ():
        if model[key] != value:
            raise UserError(
                f"config.model.{key}={model[key]!r}: a file of the authors' release does not hold it; allowed is "
                f"{value!r}, with which such a file is read"
            )


def state_dict(run: Run) -> dict[str, np.ndarray]:
    """Returns all arrays of a run's network, as the release names them."""
    model = run.config.model
    parameters, statistics = split(run.model)[1:]
    arrays = to_pytorch(parameters | statistics, blocks_a_stage=stages(model))
    for name in [name for name in arrays if name.endswith("running_mean")]:
        arrays[name.replace("running_mean", BATCHES)] = np.int64(run.step)
    if model.get("share_tables"):
        for name in [name for name in arrays if name.endswith("_embeddings.weight")]:
            arrays |= {name.replace(".0.", f".{n}.", 1): arrays[name] for n in range(1, model.num_layers)}
    return arrays
