"""A trained network's convolutions as attention (Theorem 1)."""

import dataclasses
import math
from pathlib import Path

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.theorem.to_attention import convolutions_to_attention


def resnet_to_attention(run: Run | str | Path, sharpness: float = math.inf) -> Run:
    """Returns a trained network with every convolution (1x1, 3x3, strided) replaced by attention; batch norm stays.

    Args:
      run: what `attn_cnn_jax.load_run` returns, or a run directory.
      sharpness: `alpha` of all heads; infinite copies pixels and changes nothing but the order of sums.

    Returns:
      A run whose `model` is the new network; `predict` works as before.
    """
    run = run if isinstance(run, Run) else load_run(run)
    if run.config.model.name != "resnet":
        raise UserError(f"a network of config.model.name={run.config.model.name!r} has no convolutions: give a resnet")
    return dataclasses.replace(run, model=convolutions_to_attention(run.model, sharpness))
