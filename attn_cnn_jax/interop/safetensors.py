"""Makes a run of a folder that `export` wrote as safetensors."""

from pathlib import Path

import jax.numpy as jnp

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.imported import describe, refuse_existing, write_run
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.weights import FILE, is_weights
from attn_cnn_jax.training.muon import matrices
from attn_cnn_jax.training.optimizer import create_optimizer


def import_weights(folder: str | Path, out: str | Path) -> str:
    """Writes the run directory `out` with the network of an export; its optimizer has not moved yet.

    Args:
      folder: that `export` wrote as safetensors.
      out: a directory that does not exist yet; it appears whole or not at all.

    Returns:
      What the network is, in words.

    Raises:
      UserError: if `out` exists, or the folder is no such export or damaged.
    """
    folder, out = Path(folder), Path(out)
    refuse_existing(out)
    if not is_weights(folder):
        raise UserError(f"{folder} holds no {FILE}: give a folder of attn-cnn export --format=safetensors")
    run = load_run(folder)
    parameters, statistics = split(run.model)[1:]
    optimizer = create_optimizer(run.config.optimizer, lambda step: 0.0, shaped=matrices(run.model)).init(parameters)
    state = TrainState(jnp.int32(run.step), parameters, statistics, optimizer)
    write_run(out, run.config, state, run.test)
    return describe(run.config, run.step)
