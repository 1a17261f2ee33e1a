"""A network without its training: one safetensors file in a folder that is read as a run directory is.

`config.json` is the run's configuration, `model.safetensors` holds the parameters and running statistics by name, and
its header the step and a CRC-32 of the arrays; `metrics.jsonl` holds the test record of that step, where there is one.
`attn-cnn export --format=safetensors` writes such folders, and the package brings some along (pretrained.py).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
from flax import nnx
from jaxtyping import Shaped
from ml_collections import ConfigDict
from safetensors.numpy import save

from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.errors import UserError, listed, shortened
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.models.variables import Skeleton, join, split
from attn_cnn_jax.runs.checkpoints import checksum
from attn_cnn_jax.runs.directory import to_json

FILE = "model.safetensors"
FORMAT = "attn-cnn-jax"  # in the header, to tell our files from others
VERSION = 1


def is_weights(folder: Path) -> bool:
    """Returns whether a folder holds a network without its training."""
    return (folder / FILE).is_file()


def write(folder: Path, config: ConfigDict, step: int, model: nnx.Module, test: dict | None = None) -> None:
    """Writes a network into a folder that exists.

    Args:
      folder: receives `config.json`, `model.safetensors` and, with `test`, `metrics.jsonl`.
      config: of the run.
      step: of its checkpoint.
      model: the network at that step.
      test: the record of metrics.jsonl with its test accuracy, or None.
    """
    arrays = {name: np.asarray(array) for group in split(model)[1:] for name, array in group.items()}
    header = {"format": FORMAT, "version": str(VERSION), "step": str(step), "crc32": str(checksum_by_name(arrays))}
    # safetensors writes memory as it lies: a transposed array would come back scrambled.
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_atomically(folder / FILE, save(contiguous, header))
    write_atomically(folder / "config.json", to_json(config))
    if test is not None:
        write_atomically(folder / "metrics.jsonl", json.dumps(test) + "\n")


def read(folder: Path, config: ConfigDict) -> tuple[nnx.Module, int]:
    """Returns the network in a folder, on the default device, and its step.

    Args:
      folder: that `write` wrote.
      config: found there, with the keys of today.

    Raises:
      UserError: for a file that is damaged, not ours, or holds another network than `config` describes.
    """
    path = folder / FILE
    skeleton, *abstract = split(abstract_model(config.model))
    header, arrays = read_arrays(path)
    if header.get("format") != FORMAT:
        raise UserError(f"{path} was not written by attn-cnn export --format=safetensors: allowed are such files")
    if header.get("version") != str(VERSION):
        raise UserError(f"{path} has the version {header.get('version')!r}: allowed is {VERSION}; update attn-cnn-jax")
    check_arrays(path, arrays, {name: leaf for group in abstract for name, leaf in group.items()})
    if header.get("crc32") != str(checksum_by_name(arrays)) or not header.get("step", "").isdecimal():
        raise UserError(f"{path} is damaged: its checksum is not the one saved; copy or export it anew")
    return assembled(skeleton, abstract, arrays), int(header["step"])


def read_arrays(path: Path) -> tuple[dict[str, str], dict[str, Shaped[np.ndarray, "..."]]]:
    """Returns the header and all arrays of a safetensors file; UserError if it is none."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, ValueError, TypeError, AttributeError, MemoryError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {shortened(error)}") from error


def check_arrays(path: Path, arrays: dict[str, np.ndarray], expected: Mapping[str, Any]) -> None:
    """Raises UserError, with names, unless a file has the arrays of a network, in their shapes and types."""
    found = {
        "missing": [name for name in expected if name not in arrays],
        "unknown": [name for name in arrays if name not in expected],
        "of another shape or type": [
            f"{name} {arrays[name].shape} {arrays[name].dtype}"
            for name, like in expected.items()
            if name in arrays and (arrays[name].shape, arrays[name].dtype) != (like.shape, like.dtype)
        ],
    }
    if problems := [f"{what}: {listed(names)}" for what, names in found.items() if names]:
        raise UserError(f"{path} is not the network of its config.json\n{'; '.join(problems)}")


def assembled(skeleton: Skeleton, abstract: list[dict], arrays: dict[str, np.ndarray]) -> nnx.Module:
    """Returns the network of these arrays, on the default device."""
    groups = ({name: jax.device_put(arrays[name]) for name in group} for group in abstract)
    return join(skeleton, *groups)


def checksum_by_name(arrays: dict[str, np.ndarray]) -> int:
    """Returns the CRC-32 of arrays in the order of their names."""
    return checksum([arrays[name] for name in sorted(arrays)])
