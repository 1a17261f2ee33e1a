"""Run directories made of networks that come from elsewhere: one checkpoint, all or nothing."""

import json
import os
from pathlib import Path

from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import new_folder, write_atomically
from attn_cnn_jax.interop import card
from attn_cnn_jax.runs import checkpoints, directory


def write_run(out: Path, config: ConfigDict, state: checkpoints.TrainState, record: dict | None) -> None:
    """Writes a run directory with one checkpoint and, where given, one record of metrics.jsonl; all or nothing.

    Raises:
      UserError: if it cannot be written.
    """
    try:
        with new_folder(out) as run:
            directory.claim(run, config)
            if record is not None:
                write_atomically(run / "metrics.jsonl", json.dumps(record) + "\n")
            with checkpoints.open_checkpoints(run, config) as manager:
                checkpoints.save(manager, int(state.step), state, config, {"loss": [], "accuracy": []})
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; choose another --out=RUN") from error


def refuse_existing(path: Path) -> None:
    """Raises UserError if something lies where a command would write."""
    if os.path.lexists(path):
        raise UserError(f"--out={path} exists already: choose another, or remove it")


def describe(config: ConfigDict, step: int) -> str:
    """Returns what was imported, in words."""
    classes = config.model.num_classes
    return f"{card.describe(config)}, {classes} classes, pictures as in {config.dataset.name}, step {step}"
