"""The history of a run: attention rebuilt from recorded positions, measured as that of the network itself."""

import math

import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.figures.training import choose
from attn_cnn_jax.analysis.heads import SPAN_QUERIES, interior_queries, layer_statistics
from attn_cnn_jax.analysis.history import history
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.runs.positions import read_positions


def test_the_last_record_gives_what_the_network_gives(quadratic_run):
    """And earlier ones another: the fixture moves the centres by 0.1 per epoch, and the network keeps the first."""
    run, records = load_run(quadratic_run), read_positions(quadratic_run)
    found = history(run, records)
    np.testing.assert_array_equal(found.epochs, [0, 1, 2])
    for n, attention in enumerate(run.attention()):
        inner = interior_queries(attention.shape[1:3])
        expected = layer_statistics(attention[None], kernel_shifts((3, 3)), inner[:: -(-len(inner) // SPAN_QUERIES)])
        assert found.distance[0, n] == pytest.approx(expected.distance.mean(), rel=1e-4)
        assert found.entropy[0, n] == pytest.approx(expected.entropy.mean(), rel=1e-4)
        assert found.residual[0, n] == pytest.approx(expected.span_residual, abs=1e-4)
    assert np.abs(np.diff(found.distance, axis=0)).min() > 1e-3
    assert [record["epoch"] for record in choose([{"epoch": n} for n in range(300)], None, 40)][::39] == [0, 299]


def test_heads_on_the_grid_are_a_convolution(make_run):
    """Hard attention to nine shifts: known distance, no entropy, nothing left of Lemma 3."""
    run = load_run(make_run("grid", num_heads=9, num_layers=1))
    shifts = kernel_shifts((3, 3))
    record = {"step": 0, "epoch": 4.0, "layers": [{"centre": shifts.tolist(), "spread": [10.0] * 9}]}
    found = history(run, [record])
    assert found.epochs == [4]
    assert found.distance[0, 0] == pytest.approx((4 + 4 * math.sqrt(2)) / 9, abs=1e-5)
    assert found.within[0, 0] == pytest.approx(1, abs=1e-5)
    assert found.entropy[0, 0] == pytest.approx(0, abs=1e-4)
    assert found.residual[0, 0] == pytest.approx(0, abs=1e-5)
    far = {**record, "layers": [{"centre": (shifts + 3).tolist(), "spread": [10.0] * 9}]}
    found = history(run, [far])
    assert found.within[0, 0] < 0.1  # the border may stop a head that looks 4 pixels away
    assert found.residual[0, 0] > 0.5


def test_the_command_draws_a_line_per_layer(quadratic_run, content_run, tmp_path, capsys):
    assert main(["figures", str(quadratic_run), "--figures=course", f"--out={tmp_path}"]) == 0
    svg = (tmp_path / "course.svg").read_text()
    for name in ("distance", "within", "entropy", "residual"):
        assert f'id="{name} 1"' in svg
        assert f'id="{name} 2"' in svg
    assert main(["figures", str(content_run), "--figures=course", f"--out={tmp_path}"]) == 1
    assert "depends on more than them" in capsys.readouterr().err
