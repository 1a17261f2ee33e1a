"""Writes a run's network for use elsewhere: safetensors, StableHLO (`jax.export`), ONNX, the authors' release.

The first three are folders with `config.json`, a model card (README.md) and the network: as arrays by name, or as a
function from uint8 pictures to logits for any batch size. Each is read back and compared before it appears.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import new_folder, write_atomically
from attn_cnn_jax.interop import pytorch, release_file, stablehlo, to_onnx
from attn_cnn_jax.interop.card import card
from attn_cnn_jax.interop.imported import refuse_existing
from attn_cnn_jax.interop.inference import difference
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs import weights
from attn_cnn_jax.runs.directory import read_config, to_json
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.runs.seeds import seeds_of


def write_safetensors(folder: Path, run: Run) -> float:
    """Writes the arrays; returns the largest difference of the logits of the network that is read back."""
    weights.write(folder, run.config, run.step, run.model, run.test)
    skeleton, *arrays = split(weights.read(folder, run.config)[0])
    logits = jax.jit(lambda arrays, x: join(skeleton, *arrays)(x)[0])
    return difference(run, lambda images: logits(arrays, run.normalised(np.asarray(images))))


FOLDERS: dict[str, Callable[[Path, Run], float]] = {
    "safetensors": write_safetensors,
    "jax": stablehlo.write,
    "onnx": to_onnx.write,
}
FORMATS = (*FOLDERS, "pytorch")


# Imports what a format needs beside this package, or says what to install.
NEEDED = {"onnx": to_onnx.import_onnx, "pytorch": release_file.import_torch}


def export_run(
    workdir: str | Path,
    out: str | Path,
    format: str,
    *,
    step: int | str = "latest",
    seed: int | None = None,
    note: str = "",
) -> str:
    """Writes the network of a run directory, see `export`; says what is missing before it loads the run.

    Args:
      workdir: the run directory.
      out, format, note: as for `export`.
      step: which checkpoint, as in `load_run`.
      seed: which network of a run of several seeds (seeds.py), which has to be said; None for a run of one.
    """
    if format in NEEDED:
        NEEDED[format]()
    refuse_existing(Path(out))
    return export(load_one(workdir, step, seed), out, format, note)


def load_one(workdir: str | Path, step: int | str = "latest", seed: int | None = None) -> Run:
    """Returns a run as `load_run` does; UserError for one of several seeds of which none is chosen."""
    run = load_run(workdir, step, seed)
    if run.seed is not None and seed is None:
        seeds = seeds_of(read_config(Path(workdir)) or run.config)
        raise UserError(f"{workdir} has seeds {seeds[0]} to {seeds[-1]}: choose the one to export by --seed=N")
    return run


def export(run: Run, out: str | Path, format: str = "safetensors", note: str = "") -> str:
    """Writes the network of a run; returns a line that says where, and the largest difference of its logits.

    Args:
      run: as `load_run` returns it.
      out: a folder, for "pytorch" a file, that does not exist yet; it appears whole or not at all.
      format: one of FORMATS.
      note: a sentence on data or training for the model card, which "pytorch" does not have.

    Raises:
      UserError: for an unknown format, or a note where there is no card; if `out` exists or cannot be written, a
        package is missing, the format has no such network, or what was written computes something else.
    """
    if format not in FORMATS:
        raise UserError(f"format={format!r}: allowed are {', '.join(FORMATS)}")
    if note and format == "pytorch":
        raise UserError(f"note={note!r}: a file of the authors' release has no model card; leave the note out")
    out = Path(out)
    refuse_existing(out)
    if format == "pytorch":
        pytorch.write_release(run, out)
        return str(out)
    run = of_one_seed(run)
    try:
        with new_folder(out) as folder:
            largest = FOLDERS[format](folder, run)
            write_atomically(folder / "config.json", to_json(elsewhere(run.config)))
            write_atomically(folder / "README.md", card(run, format, note))
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; choose another --out") from error
    files = ", ".join(sorted(path.name for path in out.iterdir()))
    return f"{out}: {files}; largest difference of the logits {largest:.2g}"


def of_one_seed(run: Run) -> Run:
    """Returns a run of several seeds as the run of its seed alone, as exports hold one network; others as is."""
    if run.seed is None:
        return run
    config = run.config.copy_and_resolve_references()
    config.seed = run.seed
    test = run.test and {key: value for key, value in run.test.items() if key != "seed"}
    return run._replace(config=config, seed=None, test=test)


def elsewhere(config: ConfigDict) -> ConfigDict:
    """Returns a configuration without the folder where this machine keeps prepared data.

    Which pictures of one's own a run learned, and which run it started from, are part of what it is: their paths stay.
    """
    config = config.copy_and_resolve_references()
    config.dataset.data_dir = ""
    return config
