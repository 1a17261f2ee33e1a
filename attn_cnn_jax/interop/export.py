"""Writes a run's network for use elsewhere: safetensors, StableHLO (`jax.export`), ONNX, the authors' release.

The first three are folders with `config.json`, a model card (README.md) and the network: as arrays by name, or as a
function from uint8 images to logits for any batch size. Each is read back and compared before it appears.
"""

import os
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import new_folder, write_atomically
from attn_cnn_jax.interop import functions, release
from attn_cnn_jax.interop.card import card
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs import weights
from attn_cnn_jax.runs.directory import to_json
from attn_cnn_jax.runs.run import Run, network


def write_safetensors(folder: Path, run: Run) -> float:
    """Writes the arrays; returns the largest difference of the logits of the network that is read back."""
    weights.write(folder, run.config, run.step, run.model, run.test_record)
    skeleton, *arrays = split(network(folder, run.config.model, weights.read_network(folder)[2]))
    logits = jax.jit(lambda arrays, x: join(skeleton, *arrays)(x)[0])
    return functions.difference(run, lambda images: logits(arrays, run.normalised(np.asarray(images))))


FOLDERS: dict[str, Callable[[Path, Run], float]] = {
    "safetensors": write_safetensors,
    "jax": functions.write_stablehlo,
    "onnx": functions.write_onnx,
}
FORMATS = (*FOLDERS, "pytorch")
# Imports what a format needs beside this package, or says what to install.
NEEDED = {"onnx": functions.import_onnx, "pytorch": release.import_torch}


def check(out: Path, format: str, note: str = "") -> None:
    """Raises UserError for what `export` would refuse whatever the run; before a run is loaded."""
    if format not in FORMATS:
        raise UserError(f"format={format!r}: allowed are {', '.join(FORMATS)}")
    if note and format == "pytorch":
        raise UserError(f"note={note!r}: a file of the authors' release has no model card; leave the note out")
    if format in NEEDED:
        NEEDED[format]()
    refuse_existing(out)


def export(run: Run, out: str | Path, format: str = "safetensors", note: str = "") -> str:
    """Writes the network of a run; returns a line that says where, and the largest difference of its logits.

    Args:
      run: as `load_run` returns it.
      out: a folder, for "pytorch" a file, that does not exist yet; it appears whole or not at all.
      format: one of FORMATS.
      note: a sentence on data or training for the model card, which "pytorch" does not have.

    Raises:
      UserError: for an unknown format, or a note where there is no card; if `out` exists, a package is missing, the
        format has no such network, or what was written computes something else.
    """
    out = Path(out)
    check(out, format, note)
    if format == "pytorch":
        release.write_release(run, out)
        return str(out)
    with new_folder(out) as folder:
        largest = FOLDERS[format](folder, run)
        config = run.config.copy_and_resolve_references()
        config.dataset.data_dir = ""  # of this machine; paths of own images and of the run it started from stay
        write_atomically(folder / "config.json", to_json(config))
        write_atomically(folder / "README.md", card(run, format, note))
    files = ", ".join(sorted(path.name for path in out.iterdir()))
    return f"{out}: {files}; largest difference of the logits {largest:.2g}"


def refuse_existing(path: Path) -> None:
    """Raises UserError if something is where a command would write."""
    if os.path.lexists(path):
        raise UserError(f"--out={path} exists already: choose another, or remove it")
