"""The paper's figure 13 in miniature: generalised networks without degenerate heads, trained on at a lower rate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.analysis.pictures import grid
from attn_cnn_jax.models.pruning import degenerate_heads
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training import loop
from benchmarks.kept import DATA, write_run

FIRST, PRUNED = "quadratic_generalized", "pruned"
EPOCHS = 2
COLUMNS = ("seed", "degenerate heads", "with them (%)", "right after (%)", f"{EPOCHS} epochs later (%)")


def train(out: Path, config: ConfigDict) -> None:
    """Trains the network of a seed on without its degenerate heads and keeps that run; nothing where it has none.

    Args:
      out: has the trained network, and gets the run.
      config: of the network, with its seed.
    """
    place, first = Path(PRUNED, f"seed_{config.seed}"), out / FIRST / f"seed_{config.seed}"
    trained = load_run(first)
    if not degenerate_heads(trained.model, grid(trained)):
        return
    config.start.update({"run": str(first), "prune": True})
    config.optimizer.learning_rate = 0.01  # as in configs/quadratic_generalized_pruned.py
    config.train.num_epochs = EPOCHS
    loop.run(config, out / place)
    pruned = read_config(out / place)
    assert pruned is not None
    pruned.start.run = f"{FIRST}/seed_{config.seed}"
    write_run(out / "kept" / place, pruned, read_metrics(out / place / "metrics.jsonl"), DATA)


def rows(kept: Path) -> list[dict[str, Any]]:
    """Returns test accuracies of each seed whose network had degenerate heads."""
    found = []
    for place in sorted((kept / PRUNED).glob("seed_*")):
        config = read_config(place)
        assert config is not None
        (*_, before), (after, *_, later) = tests(kept / FIRST / place.name), tests(place)
        heads = "; ".join(f"{head} of layer {layer}" for layer, head in config.start.heads)
        found.append(dict(zip(COLUMNS, (config.seed, heads, before, after, later), strict=True)))
    return found


def tests(run: Path) -> Sequence[str]:
    """Returns the test accuracies of a run, in percent."""
    return [f"{100 * each['accuracy']:.1f}" for each in read_metrics(run / "metrics.jsonl") if each["split"] == "test"]
