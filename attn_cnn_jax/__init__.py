"""Classifiers made of self-attention alone, with relative position encodings (arXiv 1911.03584)."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_cnn_jax.runs.load import Run

__all__ = ["load_run"]


def load_run(workdir: "str | Path", step: int | str = "latest", seed: int | None = None) -> "Run":
    """Restores a run that `train.py` left: `config`, `step`, `model`, `predict`, `attention`.

    See attn_cnn_jax.runs.load. Loaded on the first call, so that commands which need no model start fast.
    """
    from attn_cnn_jax.runs.load import load_run

    return load_run(workdir, step, seed)
