"""Head statistics: against naive sums and permutations; the command's table; over training, from recorded positions."""

import csv
import itertools
import math
import re
from types import SimpleNamespace

import chex
import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis import heads, test_images
from attn_cnn_jax.analysis.assignment import largest_assignment
from attn_cnn_jax.analysis.history import history
from attn_cnn_jax.cli.heads import coverage_text, to_text
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.runs.positions import evenly, read_positions


def shifting(shift, height=6, width=5):
    """One head whose every query attends to the one pixel `shift` away, or as near as the border lets it."""
    attention = np.zeros((height, width, height, width))
    for i, j in np.ndindex(height, width):
        row, column = np.clip((i + shift[0], j + shift[1]), 0, (height - 1, width - 1))
        attention[i, j, row, column] = 1
    return attention


def test_statistics_are_means_over_queries_and_images():
    random = np.random.default_rng(0).random((2, 3, 3, 4, 3, 4))
    random /= random.sum(axis=(-2, -1), keepdims=True)
    found = heads.layer_statistics(random, kernel_shifts((3, 3)))
    pixels = list(np.ndindex(3, 4))
    for h in range(3):
        centre, covariance, entropy, distance, mass, within = np.zeros(2), np.zeros((2, 2)), 0.0, 0.0, 0.0, 0.0
        for b, q in itertools.product(range(2), pixels):
            p = random[b, h][q]
            mean = sum(p[k] * (np.array(k) - q) for k in pixels)
            centre += mean / 24
            covariance += sum(p[k] * np.outer(np.array(k) - q - mean, np.array(k) - q - mean) for k in pixels) / 24
            entropy -= sum(p[k] * math.log(p[k]) for k in pixels) / 24
            distance += sum(p[k] * math.dist(k, q) for k in pixels) / 24
            mass += p[min(pixels, key=lambda k: math.dist(k, mean + q))] / 24
            within += sum(p[k] for k in pixels if math.dist(k, q) < 2) / 24
        np.testing.assert_allclose(found.centre[h], centre)
        np.testing.assert_allclose(found.covariance[h], covariance)
        np.testing.assert_allclose(found.entropy[h], entropy)
        np.testing.assert_allclose(found.distance[h], distance)
        np.testing.assert_allclose(found.mass_at_centre[h], mass)
        np.testing.assert_allclose(found.within[h], within)
        for n, shift in enumerate(kernel_shifts((3, 3))):
            inside = [(q, tuple(np.add(q, shift))) for q in pixels if tuple(np.add(q, shift)) in pixels]
            mass = np.mean([random[b, h][q][k] for b in range(2) for q, k in inside])
            np.testing.assert_allclose(found.shift_mass[h, n], mass)


def test_one_pixel_attention_has_no_spread_and_no_entropy_whatever_its_rounding():
    attention = np.zeros((41, 37), np.float32)
    attention[3, 30] = 1 - 1e-6
    np.testing.assert_array_equal(moments.centre_of_mass(attention), (3, 30))
    np.testing.assert_array_equal(moments.covariance(attention), np.zeros((2, 2)))
    assert moments.entropy(attention) == 0
    found = heads.layer_statistics(np.broadcast_to(attention, (1, 41, 37, 41, 37)), kernel_shifts((1, 1)))
    np.testing.assert_array_equal(found.covariance, np.zeros((1, 2, 2)))
    assert found.mass_at_centre == 1
    assert 0 <= found.entropy[0] < 1e-12  # 1e-6, rounded by 2^-24; below zero it was shown as -0.000


def test_three_readings_of_a_centre(quadratic_run):
    """The parameter knows no border, interior queries hardly feel it, the mean over all is pulled to zero by it."""
    run = load_run(quadratic_run)
    attention = run.model.blocks[0].attention
    attention.position.centre[...] = attention.position.centre[...].at[0].set([0.0, 2.0])
    statistics = heads.run_statistics(run)
    row = heads.rows(run, statistics)[0]
    assert (row["centre_parameter_row"], row["centre_parameter_column"]) == (0, 2)
    layer = run.attention()[0][0]
    middle = [(i, j) for i in (2, 3, 4, 5) for j in (2, 3, 4, 5)]
    assert heads.interior_queries((8, 8)) == middle
    for size, interior in {1: [0], 2: [0, 1], 3: [1], 5: [2], 16: list(range(4, 12))}.items():
        assert heads.interior_queries((size, 1)) == [(i, 0) for i in interior]
    for reading, queries in (("interior", middle), ("all", list(np.ndindex(8, 8)))):
        mean = np.mean([sum(layer[q][k] * (k[1] - q[1]) for k in np.ndindex(8, 8)) for q in queries])
        assert row[f"centre_{reading}_column"] == pytest.approx(mean, abs=1e-5)
    assert row["centre_all_column"] < 0.8 * 2 < row["centre_interior_column"] < 2
    one = heads.rows(run, heads.run_statistics(run, query=(4, 4)), (4, 4))[0]
    assert one["centre_query_column"] == pytest.approx(sum(layer[4, 4][k] * (k[1] - 4) for k in np.ndindex(8, 8)))
    assert "centre_all_column" not in one


def test_a_convolution_covers_its_grid_whatever_the_order_of_heads():
    shifts = kernel_shifts((3, 3))
    order = np.random.default_rng(1).permutation(9)
    attention = np.stack([shifting(shifts[n], 7, 7) for n in order])[None]
    mass = heads.layer_statistics(attention, shifts).shift_mass
    np.testing.assert_array_equal(order[largest_assignment(mass)], np.arange(9))
    np.testing.assert_array_equal(mass[largest_assignment(mass), np.arange(9)], np.ones(9))
    assert heads.layer_statistics(attention, shifts).span_residual < 1e-12  # Lemma 1 is a case of Lemma 3
    assert heads.layer_statistics(attention[:, 1:], shifts).span_residual == pytest.approx(1 / 3)  # one of nine missing


@pytest.mark.parametrize(
    ("covariance", "degrees"), [((4, 0, 1), 0), ((1, 0, 4), 90), ((2, 1, 2), 45), ((2, -1, 2), 135)]
)
def test_the_angle_is_that_of_the_major_axis_from_down_to_the_right(covariance, degrees):
    down, both, right = covariance
    statistics = heads.layer_statistics(shifting((0, 0))[None, None], kernel_shifts((1, 1)))
    statistics = statistics._replace(covariance=np.array([[[down, both], [both, right]]], float))
    assert heads.measures(statistics)["angle_degrees"] == pytest.approx([degrees])


def test_as_many_shifts_are_covered_as_heads_cover():
    """Not fewer for a larger sum of shares: 0.46 + 0.49 would leave the shift without the head that covers it."""
    mass = np.full((4, 4), 0.01)
    mass[0, :2], mass[1, :2] = (0.52, 0.46), (0.49, 0.1)
    layer = SimpleNamespace(entropy=np.zeros(4), shift_mass=mass, span_residual=0.5)
    text = coverage_text([layer], [[4] * len(heads.TOLERANCES)], 2)
    assert "1 of 4 shifts of the 2x2 grid covered" in text
    assert "head 1  52%" in text


def test_content_statistics_are_means_over_the_first_test_images(content_run, monkeypatch):
    run = load_run(content_run)
    found = heads.run_statistics(run, num_images=3)
    attention = run.attention(test_images.first_images(run, 3).images)[1]
    single = [heads.layer_statistics(image, heads.grid_shifts(4)).centre for image in attention]
    np.testing.assert_allclose(found[1].centre, np.mean(single, axis=0), atol=1e-6)
    assert np.ptp([centre[0, 0] for centre in single]) > 1e-6  # images do differ
    monkeypatch.setattr(test_images, "attention_batches", lambda *_: iter([[attention[:2]], [attention[2:]]]))
    np.testing.assert_allclose(heads.run_statistics(run)[0].centre, found[1].centre, atol=1e-6)  # unequal batches
    monkeypatch.undo()
    table = heads.rows(run, found)
    assert {(row["degenerate"], row["centre_parameter_row"]) for row in table} == {("", "")}  # no centre in a table
    assert to_text(table).splitlines()[1].split()[2] == "-"


def test_command_prints_a_row_a_head_and_writes_the_same_as_csv(quadratic_run, tmp_path, capsys):
    assert main(["heads", str(quadratic_run), f"--csv={tmp_path / 'heads.csv'}"]) == 0
    printed = capsys.readouterr().out
    with open(tmp_path / "heads.csv") as file:
        table = list(csv.DictReader(file))
    assert [(row["layer"], row["head"]) for row in table] == [(f"{n}", f"{m}") for n in (1, 2) for m in (1, 2, 3, 4)]
    degenerate = [bool(row["degenerate"]) for row in table]
    assert degenerate == [False, False, False, True] * 2
    assert float(table[3]["entropy"]) == pytest.approx(math.log(64), abs=1e-4)
    assert printed.count("uniform: s^2 1.0e-06 < 1e-05") == 2
    assert re.search(r"layer 2: \d of 4 shifts of the 2x2 grid covered; Lemma 3: residual 0\.\d{3}", printed)
    statistics = heads.run_statistics(load_run(quadratic_run))
    assert len(re.findall(r"effective heads of 4: \d at 1%, \d at 5%, \d at 20%", printed)) == 2
    assert float(table[5]["centre_all_row"]) == pytest.approx(statistics[1].centre[1, 0], rel=1e-5)
    parameter = load_run(quadratic_run).model.blocks[1].attention.position.centre[1, 0]
    assert float(table[5]["centre_parameter_row"]) == pytest.approx(float(parameter), rel=1e-5)
    assert re.split(r"  +", printed.splitlines()[0].strip())[2:5] == ["centre: parameter", "interior", "all"]
    assert list(tmp_path.iterdir()) == [tmp_path / "heads.csv"]


def test_effective_heads_are_the_rank_of_attention_and_value_maps_together(quadratic_run):
    """Against the matrix written out; a head that repeats another's attention does not count."""
    run = load_run(quadratic_run)
    position = run.model.blocks[0].attention.position
    for name in ("centre", "spread"):
        getattr(position, name)[...] = getattr(position, name)[...].at[1].set(getattr(position, name)[0])
    patterns = [layer.patterns for layer in heads.run_statistics(run)]
    assert patterns[0].shape == (4, 16 * 64)
    np.testing.assert_allclose(patterns[0][2].reshape(16, 8, 8)[5], run.attention()[0][2, 3, 3], atol=1e-6)
    for found, layer, of in zip(heads.effective_heads(run, patterns), run.model.blocks, patterns, strict=True):
        made = np.einsum("hn,hdo->ndo", of, np.asarray(layer.attention.merged_maps(), np.float64)).reshape(
            of.shape[1], -1
        )
        values = np.linalg.svd(made, compute_uv=False)
        for count, tolerance in zip(found, heads.TOLERANCES, strict=True):
            assert (
                np.linalg.norm(values[count:])
                <= tolerance * np.linalg.norm(values)
                < np.linalg.norm(values[count - 1 :])
            )
    assert heads.effective_heads(run, patterns)[0][0] <= 3


def test_fewer_test_images_than_are_averaged_by_default_are_all_taken(content_run, monkeypatch):
    """As of 6 images of one's own; commands say how many they are a mean over."""
    run = load_run(content_run)
    expected = heads.run_statistics(run, num_images=6)
    dataset = test_images.load_dataset(run)
    small = dataset._replace(test=dataset.test.at(np.arange(6)))
    monkeypatch.setattr(test_images.sources, "read", lambda source, place: small)
    chex.assert_trees_all_equal(heads.run_statistics(run), expected)
    assert test_images.averaged_over(run, None) == 6


def test_the_last_record_gives_what_the_network_gives(quadratic_run):
    """And earlier ones another: the fixture moves the centres by 0.1 per epoch, and the network keeps the first."""
    run, records = load_run(quadratic_run), read_positions(quadratic_run)
    found = history(run, records)
    np.testing.assert_array_equal(found.epochs, [0, 1, 2])
    for n, attention in enumerate(run.attention()):
        inner = heads.interior_queries(attention.shape[1:3])
        expected = heads.layer_statistics(
            attention[None], kernel_shifts((3, 3)), inner[:: -(-len(inner) // heads.SPAN_QUERIES)]
        )
        assert found.distance[0, n] == pytest.approx(expected.distance.mean(), rel=1e-4)
        assert found.entropy[0, n] == pytest.approx(expected.entropy.mean(), rel=1e-4)
        assert found.residual[0, n] == pytest.approx(expected.span_residual, abs=1e-4)
    assert np.abs(np.diff(found.distance, axis=0)).min() > 1e-3
    assert [record["epoch"] for record in evenly([{"epoch": n} for n in range(300)], 40)][::39] == [0, 299]


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
