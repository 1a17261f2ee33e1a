"""A network without its training: one safetensors file in a folder that is read as a run directory is.

`config.json` is the run's configuration, `model.safetensors` holds the parameters and running statistics by name, and
its header the step and a CRC-32 of the arrays; `metrics.jsonl` holds the test record of that step, `positions.jsonl`
where heads looked up to it, where there are any, and `environment.jsonl` which machine measured the record.
`attn-cnn export --format=safetensors` writes such folders, and the package includes some (pretrained.py).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from flax import nnx
from ml_collections import ConfigDict
from safetensors.numpy import save

from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.errors import UserError, listed, shortened
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.models.variables import Arrays, join, split
from attn_cnn_jax.runs.directory import read_config, to_json
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.runs.saved import Saved, checksum

FILE = "model.safetensors"
FORMAT = "attn-cnn-jax"  # in the header, to tell our files from others


def write(folder: Path, run: Run) -> None:
    """Writes a run's network into a folder that exists, with its test record and positions, where there are any."""
    _, parameters, statistics = split(run.model)
    # safetensors writes memory as it is: a transposed array would come back scrambled.
    arrays = {name: np.asarray(array, order="C") for name, array in (parameters | statistics).items()}
    header = {"format": FORMAT, "version": "1", "step": str(run.step), "crc32": str(checksum(arrays))}
    # What the page needs to open the file alone; nothing of the machine.
    data = {name: getattr(run.spec, name) for name in ("name", "mean", "std", "class_names")}
    header["config"] = json.dumps({"model": run.config.model.to_dict(), "dataset": data})
    write_atomically(folder / FILE, save(arrays, header))
    write_atomically(folder / "config.json", to_json(run.config))
    kept = {
        "metrics": [run.test_record] if run.test_record else [],
        "positions": run.positions,
        "environment": [run.environment] if run.environment else [],
    }
    for name, records in kept.items():
        if records:
            write_atomically(folder / f"{name}.jsonl", "".join(json.dumps(record) + "\n" for record in records))


def read_network(folder: Path, step: int | str, upgraded: Callable[[ConfigDict], ConfigDict]) -> Saved:
    """Returns the network that `write` wrote, also where other tools stored its arrays again, in any precision.

    `upgraded` is that of `checkpoints.read_network`. UserError for a damaged file, or a `step` that it does not hold.
    """
    path, config = folder / FILE, upgraded(read_config(folder) or ConfigDict())
    header, arrays = read_arrays(path)
    dtype = np.dtype("float64" if config.model.dtype == "float64" else "float32")
    if header.get("format") == FORMAT:
        as_written = all(array.dtype == dtype for array in arrays.values())
        if as_written and header.get("crc32") != str(checksum(arrays)):
            raise UserError(f"{path} is damaged: its checksum is not the one saved; copy or export it anew")
    number = int(text) if (text := header.get("step", "0")).isdecimal() else 0
    if step not in ("latest", number):
        raise UserError(f"step={step!r}: {folder} holds one network, of step {number}")
    arrays = {n: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x for n, x in arrays.items()}
    return number, config, network(folder, config.model, jax.device_put(arrays)), None


def network(place: Path, model: ConfigDict, arrays: Arrays) -> nnx.Module:
    """Returns the network that `config.model` describes, with these parameters and statistics by name.

    UserError, with names, if they are not those of the network, in their shapes and types.
    """
    skeleton, parameters, statistics = split(abstract_model(model))
    expected = parameters | statistics
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
        raise UserError(f"{place} is not the network of its config.json\n{'; '.join(problems)}")
    return join(skeleton, *({name: arrays[name] for name in group} for group in (parameters, statistics)))


def read_arrays(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Returns the header and all arrays, NumPy, of a safetensors file; UserError if it is none."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, ValueError, TypeError, AttributeError, MemoryError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {shortened(error)}") from error
