"""Reads a run back from its directory, or from a folder with exported weights."""

from functools import partial
from pathlib import Path

from ml_collections import ConfigDict

from attn_cnn_jax.config import validate, with_defaults
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.models.resnet import ResNet
from attn_cnn_jax.runs import environment, metrics, weights
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.runs.pretrained import existing
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.runs.saved import Saved

# What `export` writes that is no run, and what reads it.
FUNCTIONS = {
    "model.stablehlo": "jax.export.deserialize reads it, see its README.md",
    "model.onnx": "ONNX Runtime reads it, see its README.md",
}


def load_run(workdir: str | Path, step: int | str = "latest") -> Run:
    """Restores a run that training left, finished or not, on any number of devices, without its data.

    Args:
      workdir: the run directory, a folder that `export` wrote as safetensors, or `pretrained:NAME` (pretrained.py).
      step: "latest", "best" (by validation accuracy; only with a validation split), or the number of a step.

    Raises:
      UserError: if there is no such run or step, or its checkpoint is damaged.
    """
    folder = existing(workdir)
    number, config, model, data = load_network(folder, step)
    assert isinstance(model, AttentionClassifier | ResNet)
    positions = [record for record in read_positions(folder) if record["step"] <= number]
    made_by = environment.of_step(environment.read_environments(folder), number) or {}
    return Run(config, number, model, metrics.test_record(folder, number), data, positions, made_by)


def load_network(workdir: str | Path, step: int | str = "latest") -> Saved:
    """Restores the network of a run alone, without its records; arguments and errors are those of `load_run`."""
    folder = existing(workdir)
    reader = weights
    if not (folder / weights.FILE).is_file():
        for file, how in FUNCTIONS.items():
            if (folder / file).is_file():
                raise UserError(
                    f"{folder} holds a function, {file}, and no network to look into: {how}\n"
                    "for commands and load_run export the run with --format=safetensors"
                )
        from attn_cnn_jax.runs import checkpoints as reader  # Orbax takes half a second to import
    return reader.read_network(folder, step, partial(upgraded, folder))


def upgraded(folder: Path, config: ConfigDict) -> ConfigDict:
    """Returns the configuration of a run with the keys that came later; UserError if today it describes no network."""
    config = with_defaults(config)
    if (encoding := config.model.get("encoding", "quadratic")) not in REGISTRY:
        raise UserError(
            f"{folder} has the encoding {encoding!r}, which is not registered here: name its file, --load=FILE"
        )
    try:
        validate(config)
    except UserError as error:
        raise UserError(f"{folder} was trained by another version of attn-cnn-jax: {error}") from error
    return config
