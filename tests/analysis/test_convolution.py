"""How convolutional small untrained runs are: numbers, figure, and what `attn-cnn convolution` prints and refuses."""

import csv
import dataclasses

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis import convolution
from attn_cnn_jax.analysis.convolution import (
    SUBSTITUTES,
    GivenAttention,
    Result,
    kernel_of,
    replace_first,
    substitutes,
)
from attn_cnn_jax.analysis.figures.convolution import draw
from attn_cnn_jax.analysis.test_images import first_images
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.config import resnet_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.theorem.to_convolution import OutputError, mass_outside, shift_weights
from tests.support.networks import logits_of

FULL = 15  # covers the 8x8 images from every query
COUNT = 40


def test_tables_csv_and_figure(quadratic_run, tmp_path, capsys):
    arguments = [str(quadratic_run), f"--kernel-sizes={FULL},3", f"--out={tmp_path}", f"--test-images={COUNT}"]
    assert main(["convolution", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "first n layers replaced" in printed
    assert "depends on content" not in printed
    with open(tmp_path / "convolution.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kernel_size"], row["layer"]) for row in rows] == [("3", "1"), ("3", "2"), ("15", "1"), ("15", "2")]
    run = load_run(quadratic_run)
    images, labels = first_images(run, COUNT)
    expected = (run.predict(images).argmax(axis=1) == labels).mean()
    for row in rows[2:]:  # the window covers the image: the layer itself
        assert float(row["accuracy_truncated"]) == float(row["accuracy_original"]) == pytest.approx(expected, abs=1e-6)
        assert float(row["mass_inside_least"]) == pytest.approx(1, abs=1e-5)
        assert float(row["error_interior"]) < 1e-4
    three, full = rows[0], rows[2]
    assert 0.1 < float(three["mass_inside_mean"]) < 0.9
    assert float(three["error_interior"]) > 0.05
    assert float(full["error_everywhere"]) > 0.05  # zeros beyond the border, where these heads look
    assert all((tmp_path / f"convolution.{kind}").stat().st_size > 5000 for kind in ("png", "svg"))


def test_first_layers_are_replaced_in_order(quadratic_run):
    run = load_run(quadratic_run)
    x, own = run.normalised(first_images(run, 4).images), [jnp.asarray(layer) for layer in run.attention()]
    chex.assert_trees_all_close(logits_of(replace_first(run.model, own), x), logits_of(run.model, x), atol=1e-5)
    replaced = [isinstance(block.attention, GivenAttention) for block in replace_first(run.model, own[:1]).blocks]
    assert replaced == [True, False]


def test_one_program_computes_the_substitutes_of_all_kernel_sizes():
    attention = np.random.default_rng(0).random((3, 4, 5, 4, 5), np.float32)
    attention /= attention.sum(axis=(-2, -1), keepdims=True)
    for size in (1, 2, 3, 4, 7, 11):
        found, inside = substitutes(jnp.asarray(attention), kernel_of(size, 11, (4, 5)))
        weights, first = np.asarray(shift_weights(attention, size)), (size - 1) // 2
        expected = {kind: np.zeros_like(attention) for kind in SUBSTITUTES}
        for i, j, r, c in np.ndindex(4, 5, size, size):
            k, m = i + r - first, j + c - first
            expected["edge"][:, i, j, np.clip(k, 0, 3), np.clip(m, 0, 4)] += weights[:, r, c]
            if 0 <= k < 4 and 0 <= m < 5:
                expected["zeros"][:, i, j, k, m] = weights[:, r, c]
                expected["truncated"][:, i, j, k, m] = attention[:, i, j, k, m]
        for kind in SUBSTITUTES:
            np.testing.assert_allclose(found[kind], expected[kind], atol=1e-6)
        np.testing.assert_allclose(inside, 1 - mass_outside(attention, size), atol=1e-6)


def test_layer_by_layer_is_the_network_with_its_first_layers_replaced(quadratic_run):
    run = load_run(quadratic_run)
    images, labels = first_images(run, 101)  # in two batches, filled up
    original, (three,) = convolution.measure_run(run, (3,), test_images=101)
    assert original == pytest.approx(run.evaluate(images, labels).accuracy, abs=1e-6)
    for kind, accuracy in three.accuracy.items():
        given = [substitutes(jnp.asarray(layer), kernel_of(3, 3, (8, 8)))[0][kind] for layer in run.attention()]
        replaced = [dataclasses.replace(run, model=replace_first(run.model, given[: n + 1])) for n in range(2)]
        np.testing.assert_allclose(accuracy, [run.evaluate(images, labels).accuracy for run in replaced], atol=1e-6)


def test_figure_shows_the_results():
    numbers = iter(np.random.default_rng(0).random(100))
    original, results = next(numbers), []
    for size in (1, 3):
        accuracies = {kind: np.array([next(numbers), next(numbers)]) for kind in SUBSTITUTES}
        errors = [OutputError(next(numbers), next(numbers)) for _ in range(2)]
        results.append(Result(size, accuracies, errors, [np.array([next(numbers)]) for _ in range(2)]))
    whole, first, error, inside = draw(original, results).axes
    for kind in SUBSTITUTES:
        (line,) = (line for line in whole.lines if line.get_gid() == kind)
        np.testing.assert_allclose(line.get_xydata(), [(r.kernel_size, 100 * r.accuracy[kind][-1]) for r in results])
    shown = {line.get_label(): line.get_ydata() for line in (*first.lines, *inside.lines)}
    np.testing.assert_allclose(shown["layers 1 to 2"], [100 * r.accuracy["zeros"][1] for r in results])
    np.testing.assert_allclose(shown["the network itself"], 100 * original)
    np.testing.assert_allclose(shown["layer 2"], [100 * r.mass_inside[1].mean() for r in results])
    labelled = {line.get_label(): line.get_ydata() for line in error.lines}
    np.testing.assert_allclose(labelled["layer 2"], [r.error[1].interior for r in results])


def test_content_models_say_that_their_attention_is_a_mean(content_run, tmp_path, capsys):
    arguments = [str(content_run), f"--kernel-sizes={FULL}", f"--out={tmp_path}", f"--test-images={COUNT}"]
    assert main(["convolution", *arguments, "--images=30"]) == 0
    assert "the mean over 30 test images takes its place" in capsys.readouterr().out
    run = load_run(content_run)
    images, labels = first_images(run, COUNT)
    mean = [jnp.asarray(layer.mean(axis=0)) for layer in run.attention(images[:30])]
    expected = dataclasses.replace(run, model=replace_first(run.model, mean)).evaluate(images, labels).accuracy
    with open(tmp_path / "convolution.csv") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["accuracy_truncated"]) == pytest.approx(expected, abs=1e-6)


def test_an_included_network_is_measured_on_drawings_where_its_data_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert main(["convolution", "pretrained:cifar10_maps16", "--kernel-sizes=9", f"--out={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr()
    assert "--data-dir" in printed.err
    assert "accuracy on 4 drawings 100.00%" in printed.out
    assert "est accuracy" not in printed.out
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_measured(quadratic_run):
    with pytest.raises(UserError, match="a resnet has no attention"):
        convolution.measure_run(Run(resnet_config(), 0, None), (3,))
    assert main(["convolution", str(quadratic_run), "--kernel-sizes=0,3"]) == 2
