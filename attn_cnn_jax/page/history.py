"""Positions recorded in training, as parameters that the page computes attention from."""

from collections.abc import Sequence

import numpy as np

from attn_cnn_jax.page.scores import KINDS

MOST_EPOCHS = 120  # 1 kB each; a slider of a few hundred pixels hardly tells more apart
SMALLEST_VARIANCE = 0.05**2  # of attention to a single pixel, whose covariance has no inverse


def recorded_epochs(records: Sequence[dict], step: int, head_counts: list[int], term: str | None) -> list[dict]:
    """The course of training up to the checkpoint at a step, oldest first; empty without records.

    Args:
      records: of positions.jsonl up to that step, oldest first.
      step: of the checkpoint that the page shows.
      head_counts: number of heads of every layer; records of a network with others are left out.
      term: name of the score term that positions have, None where there is none.

    Returns:
      `epoch` and `layers` of each record, with `layers[n].position` as in `scores.position_parameters`; the last one
      is the checkpoint itself, and has `layers` only if it was recorded.
    """
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
    """A recorded layer as the parameters of a quadratic encoding, to a thousandth.

    A record of other encodings holds moments of the central pixel's attention; the Gaussian with them stands for it.
    """
    if "covariance" in layer:
        variances, axes = np.linalg.eigh(np.asarray(layer["covariance"], np.float64))
        spread = axes / np.sqrt(np.maximum(variances, SMALLEST_VARIANCE))[:, None, :]  # S S^T inverts the covariance
    else:
        spread = np.asarray(layer["spread"])
    shown = {"centre": np.asarray(layer["centre"]), "spread": spread}
    return {"kind": KINDS[spread.ndim]} | {name: np.round(array, 3).tolist() for name, array in shown.items()}
