"""Positions recorded in training, as parameters that the page computes attention from."""

from pathlib import Path

import numpy as np

from attn_cnn_jax.page.scores import KINDS
from attn_cnn_jax.runs.positions import read_positions

MOST_EPOCHS = 300  # that a slider of a few hundred pixels can tell apart
SMALLEST_VARIANCE = 0.05**2  # of attention to a single pixel, whose covariance has no inverse


def recorded_epochs(workdir: Path, step: int, head_counts: list[int], term: str | None) -> list[dict]:
    """The course of training up to the checkpoint at a step, oldest first; empty without a positions.jsonl.

    Args:
      workdir: the run directory.
      step: of the checkpoint that the page shows.
      head_counts: number of heads of every layer; records of a network with others are left out.
      term: name of the score term that positions have, None where there is none.

    Returns:
      `epoch` and `layers` of each record, with `layers[n].position` as in `scores.position_parameters`; the last one
      is the checkpoint itself, and has `layers` only if it was recorded.
    """
    records = [record for record in read_positions(workdir) if record["step"] <= step]
    records = [record for record in records if [len(x.get("centre", ())) for x in record["layers"]] == head_counts]
    if term is None or not records or records[-1]["step"] == 0:
        return []

    def entry(record: dict) -> dict:
        layers = [{"position": {"term": term, **parameters(layer)}} for layer in record["layers"]]
        return {"epoch": record["epoch"], "layers": layers}

    epoch = round(records[-1]["epoch"] * step / records[-1]["step"], 2)
    last = entry(records.pop()) if records[-1]["step"] == step else {"epoch": epoch}
    chosen = np.unique(np.linspace(0, len(records) - 1, min(len(records), MOST_EPOCHS)).round().astype(int))
    return [*(entry(records[n]) for n in chosen), last]


def parameters(layer: dict) -> dict:
    """A recorded layer as the parameters of a quadratic encoding.

    A record of other encodings holds moments of the central pixel's attention; the Gaussian with them stands for it.
    """
    if "covariance" not in layer:
        return {"kind": KINDS[np.ndim(layer["spread"])], "centre": layer["centre"], "spread": layer["spread"]}
    variances, axes = np.linalg.eigh(np.asarray(layer["covariance"], np.float64))
    spread = axes / np.sqrt(np.maximum(variances, SMALLEST_VARIANCE))[:, None, :]  # S S^T is the inverse covariance
    return {"kind": "gaussian", "centre": layer["centre"], "spread": np.round(spread, 5).tolist()}
