"""The numbers of the miniature of Table 1, and that the page says what the kept runs say."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from attn_cnn_jax.analysis.flops import count_flops
from attn_cnn_jax.analysis.heads import layer_statistics
from attn_cnn_jax.config import complete
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.runs.directory import read_config
from benchmarks import kept, locality, miniature, pruning

KEPT = Path(__file__).parents[2] / "results" / "miniature"
RUNS = sorted(run for network in miniature.ALL for run in KEPT.glob(f"{network}/seed_*"))


def test_measures_of_a_head_that_looks_at_itself_and_of_one_that_looks_everywhere():
    attention = np.empty((1, 2, 5, 5, 5, 5))
    attention[0, 0] = np.eye(25).reshape(5, 5, 5, 5)
    attention[0, 1] = 1 / 25
    found = miniature.head_measures(layer_statistics(attention, kernel_shifts((3, 3))))
    pixels = [(i, j) for i in range(5) for j in range(5)]
    far = np.mean([math.dist(query, key) for query in pixels for key in pixels])
    assert found["distance"] == [0, pytest.approx(far, rel=1e-3)]
    assert found["within"] == [1, pytest.approx(9 / 25, rel=1e-3)]
    assert found["entropy"] == [pytest.approx(0, abs=1e-6), pytest.approx(math.log(25), rel=1e-3)]


def test_locality_is_the_mean_over_heads_and_seeds_of_the_last_epoch(tmp_path):
    for seed, within in ((0, [0.9, 0.2]), (1, [0.6, 0.3])):
        place = tmp_path / "quadratic" / f"seed_{seed}"
        place.mkdir(parents=True)
        layers = [{"distance": [1.0, 2.0 + seed], "within": share, "entropy": [0.5, 1.5]} for share in ([0, 0], within)]
        lines = [{"step": n, "layers": [layer]} for n, layer in enumerate(layers)]
        (place / "heads.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,) = locality.rows(tmp_path, ("quadratic", "resnet"))
    assert list(row.values()) == ["`quadratic`", 1, "1.75", "50", "50", "1.00"]


def test_a_pruned_network_is_compared_with_the_one_that_it_starts_from(tmp_path):
    def write(network, accuracies, heads=()):
        config = miniature.configured(pruning.FIRST, 2, None)
        config.start.heads = heads
        records = [{"split": "test", "accuracy": accuracy} for accuracy in accuracies] + [
            {"split": "train", "accuracy": 1}
        ]
        numbered = [{"step": n, "epoch": n, "loss": 1.0} | record for n, record in enumerate(records)]
        kept.write_run(tmp_path / network / "seed_2", config, numbered)

    write(pruning.FIRST, [0.4, 0.55])
    assert pruning.rows(tmp_path) == []
    write(pruning.PRUNED, [0.545, 0.1, 0.568], ((1, 7), (3, 2)))
    (row,) = pruning.rows(tmp_path)
    assert list(row.values()) == [2, "7 of layer 1; 2 of layer 3", "55.0", "54.5", "56.8"]


def test_an_unknown_network_is_refused_with_those_that_are_known():
    with pytest.raises(
        UserError, match=r"miniature.py:resnet19: allowed after the colon are quadratic, .*resnet, also with _16x16$"
    ):
        miniature.configured("resnet19", 0, None)


@pytest.mark.parametrize(("size", "share"), [("", 1), ("_16x16", (16 + 16) / (16 * 16))])
def test_the_resnet_does_as_much_arithmetic_as_quadratic_attention(size, share):
    """At 16x16 pixels that factorises: an average over rows and one over columns, for one over all pixels."""
    model, resnet = (complete(miniature.configured(f"{name}{size}", 0, None)).model for name in ("quadratic", "resnet"))
    linear, full = count_flops(model)
    assert count_flops(resnet).full == pytest.approx(linear + share * (full - linear), rel=0.03)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.parent.name}-{run.name}")
def test_kept_runs_are_of_these_configurations(run):
    config = miniature.configured(run.parent.name, int(run.name.removeprefix("seed_")), None)
    assert kept.training_of(read_config(run)) == kept.training_of(config)


def test_the_page_has_the_tables_of_the_kept_runs():
    assert RUNS
    assert miniature.tables(KEPT) in miniature.PAGE.read_text(encoding="utf-8")
