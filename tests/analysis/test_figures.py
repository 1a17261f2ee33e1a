"""What each figure shows: centres, maps, images, curves."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis import test_images
from attn_cnn_jax.analysis.figures import (
    centres,
    confusion,
    curves,
    maps,
    parabolas,
    predictions,
    scheme,
    span,
    style,
    training,
)
from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.output import printable
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.theorem import span as theorem_span
from tests.support.figures import found

ROOT = Path(__file__).parents[2]


def test_centres_are_drawn_where_the_parameters_say(quadratic_run):
    run = load_run(quadratic_run)
    figure = centres.draw_run(run, test_images.mean_attention(run, 1))
    for layer, block in enumerate(run.model.blocks):
        for head, (row, column) in enumerate(np.asarray(block.attention.position.centre[...])):
            (mark,) = [mark for mark in found(figure, f"centre {head}") if mark.axes is figure.axes[layer]]
            assert (*mark.get_xdata(), *mark.get_ydata()) == pytest.approx((column, row))
            assert mark.get_color() == style.look(head).colour


def test_parabolas_are_centred_where_the_score_of_their_query_is_highest():
    """PaPE: against the scores of a query at shifts around it, and Gaussians of that width."""
    config = attention_config(encoding="pape", image_shape=(8, 6, 3), num_layers=2, num_heads=3, hidden_size=12)
    config.model.update({"downsample": 2, "intermediate_size": 8})
    run = Run(config, 0, create_model(config.model, rngs=nnx.Rngs(0)))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 6, 3), np.uint8)
    figure = parabolas.draw(run, pixels)
    assert re.fullmatch(r"layer 2, \d+% outside", figure.axes[1].get_title())
    x, encoding = run.intermediates(pixels)["layers"][0]["output"], run.model.blocks[1].attention.position
    shapes, scores = parabolas.shapes(encoding, x), encoding.project(jnp.asarray(x))
    drawn, _ = found(figure, "layer 1 head 2")
    np.testing.assert_allclose(np.stack(drawn.get_data()[::-1], -1), shapes.centre[:, 2].reshape(-1, 2))
    a, b = (np.asarray(part, np.float64)[1, 2, 3, 0] for part in (scores.width, scores.tilt))
    w = np.asarray(encoding.direction[...], np.float64)[2]

    def score(shift):
        return -(a * (w @ shift) ** 2).sum() - (b * (w @ shift)).sum()

    centre, around = shapes.centre[1, 2, 3, 0], 0.1 * np.array([[1, 0], [0, 1], [1, 1], [-1, 1]])
    drops = np.array([score(centre) - score(centre + step) for step in around])
    np.testing.assert_allclose(drops, [score(centre) - score(centre - step) for step in around], atol=1e-10)
    half = (drops[2] - drops[3]) / 4  # off the diagonal of the quadratic form, in squares of the step
    determinant = (drops[0] * drops[1] - half**2) / 0.1**4
    np.testing.assert_allclose(shapes.widths[1, 2, 3, 0].prod(), 0.5 * determinant**-0.5, rtol=1e-6)


def test_attention_by_content_is_the_mean_over_images_and_other_is_not_copied(quadratic_run, content_run, monkeypatch):
    run = load_run(content_run)
    monkeypatch.setattr(test_images, "BYTES_PER_BATCH", 2 * 4 * 8 * 64**2)  # of 2 images, 2 layers of 4 heads
    assert [len(layers[0]) for layers in test_images.attention_batches(run, 5)] == [2, 2, 1]
    expected = run.attention(test_images.first_images(run, 5).images)
    for layer, of_images in zip(test_images.mean_attention(run, 5), expected, strict=True):
        np.testing.assert_allclose(layer, of_images.mean(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-9)
    assert {layer.dtype for layer in test_images.mean_attention(load_run(quadratic_run), 3)} == {np.dtype(np.float32)}


def test_training_panels_show_the_recorded_centres_and_deviations(quadratic_run):
    records = read_positions(quadratic_run)
    figure = training.draw(records, 1)
    assert [axes.get_title().split(",")[0] for axes in figure.axes] == ["epoch 0", "epoch 1", "epoch 2"]
    text = "layer 2: where its heads look; circles: one standard deviation of their attention"
    assert figure.get_suptitle() == text
    for axes, record in zip(figure.axes, records, strict=True):
        for head, (row, column) in enumerate(record["layers"][1]["centre"]):
            (mark,) = [mark for mark in found(figure, f"centre {head}") if mark.axes is axes]
            assert (*mark.get_xdata(), *mark.get_ydata()) == pytest.approx((column, row))
        (circle,) = [ellipse for ellipse in found(figure, "deviation 1") if ellipse.axes is axes]
        assert (circle.width, circle.height) == pytest.approx((2 / 0.6, 2 / 0.6), rel=1e-4)  # spread 0.6: 1 / s


def test_deviation_of_a_tilted_gaussian_is_turned_as_it_is():
    precision = np.linalg.inv([[3.0, 1.2], [1.2, 1.0]])
    spread = np.linalg.cholesky(precision)
    record = {"epoch": 1.0, "step": 1, "layers": [{"centre": [[0.5, 2.0]], "spread": [spread.tolist()]}]}
    (ellipse,) = found(training.draw([record], 0), "deviation 0")
    angles = np.linspace(0, 2 * np.pi, 50)
    vertices = ellipse.get_patch_transform().transform(np.stack([np.cos(angles), np.sin(angles)], axis=-1))
    rows_first = vertices[:, ::-1] - (0.5, 2.0)
    np.testing.assert_allclose(np.einsum("na,ab,nb->n", rows_first, precision, rows_first), 1)
    record["layers"][0]["spread"] = [[[1.0, 2.0], [2.0, 4.0]]]  # singular: as wide as it can be
    assert not found(training.draw([record], 0), "deviation 0")
    record["layers"][0]["spread"] = [1.4e-45]  # of a head that came to see all pixels alike: drawing it took forever
    (ellipse,) = found(training.draw([record], 0), "deviation 0")
    assert ellipse.width == ellipse.height < 1000


def test_maps_show_the_attention_of_the_query_pixel_in_order_of_distance(quadratic_run):
    run = load_run(quadratic_run)
    layers, query = run.attention(), (2, 5)
    figure = maps.draw(layers, query, "distance", "title")
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == 8
    for layer, row in zip(layers, (panels[:4], panels[4:]), strict=True):
        order = [int(axes.images[0].get_gid().removeprefix("map ")) for axes in row]
        distances = moments.distance(layer[:, 2, 5], query)[order]
        assert list(distances) == sorted(distances)
        for axes, head in zip(row, order, strict=True):
            np.testing.assert_array_equal(axes.images[0].get_array(), layer[head, 2, 5])
            assert axes.get_title() == str(head + 1)
            (mark,) = [patch for patch in axes.patches if patch.get_gid() == "query"]
            assert mark.get_xy() == (4.5, 1.5)


def test_maps_have_the_colours_of_the_page_and_uniform_attention_the_middle_one():
    script = (ROOT / "attn_cnn_jax/page/web/drawing.js").read_text()
    assert json.loads(re.search(r"light: (\[\[.*\]\])", script)[1]) == [list(stop) for stop in style.RAMP]
    layer = np.stack([np.full((4, 4), 1 / 16), np.eye(4) / 4])[:, None, None].repeat(4, 1).repeat(4, 2)
    figure = maps.draw([layer], (1, 1), "index", "title")
    even, sharp = (axes.images[0] for axes in figure.axes[:2])
    assert even.cmap is style.ATTENTION
    assert even.norm(1 / 16) == pytest.approx(0.5)
    assert sharp.norm(1 / 4) == 1


def test_the_scheme_shows_each_heads_attention_and_value_map(quadratic_run):
    run = load_run(quadratic_run)
    attention, values = run.attention()[1], np.asarray(run.model.blocks[1].attention.merged_maps())
    figure = scheme.draw(attention, values, (4, 5), "title")
    for head in range(4):
        (shown,), (matrix,), (mark,) = (found(figure, f"{name} {head}") for name in ("map", "values", "centre"))
        np.testing.assert_array_equal(shown.get_array(), attention[head, 4, 5])
        np.testing.assert_array_equal(matrix.get_array(), values[head])
        row, column = moments.centre_of_mass(attention[head, 4, 5])
        assert (*mark.get_xdata(), *mark.get_ydata()) == pytest.approx((column, row))
    (pixel,) = found(figure, "output")
    assert pixel.get_xy() == (4.5, 3.5)
    assert "where each head looks" in figure.axes[0].get_title()  # the grid is the input, with a mark per head


def test_figure_11_shows_the_residual_of_every_query(quadratic_run):
    attention = load_run(quadratic_run).attention()[0]
    figure = span.draw(attention, kernel_shifts((2, 2)), (4, 4), "title")
    (shown,) = found(figure, "residuals")
    np.testing.assert_allclose(shown.get_array().ravel(), theorem_span.residuals(attention, kernel_shifts((2, 2))))
    panels = [axes for axes in figure.axes if axes.images]
    np.testing.assert_array_equal(panels[0].images[0].get_array()[:, 0], np.eye(64)[4 * 8 + 4])


def test_a_probability_stands_beside_its_bar():
    figure = predictions.draw([np.zeros((4, 4, 1), np.uint8)], ["x"], [[("a", 0.75), ("b", 0.25)]], [[]])
    figure.canvas.draw()
    bars, texts = figure.axes[1].patches, figure.axes[1].texts
    for bar, text in zip(bars, texts, strict=True):
        assert text.get_window_extent().x0 > bar.get_window_extent().x1


@pytest.mark.filterwarnings("ignore:Glyph")  # of a font without these letters
def test_names_in_figures_are_text_and_nothing_else(tmp_path):
    """As titles and as names of classes: the SVG is well-formed, and shows what is printable."""
    name = "\x1b[31mred\x00 <script>&| $x^2$ \u202eevil caf\u00e9 \u732b"
    image = np.zeros((4, 4, 1), np.uint8)
    figure = predictions.draw([image], [name], [[(name, 0.5)]], [[]])
    style.save(figure, tmp_path, "figure")
    texts = [
        element.text for element in ElementTree.parse(tmp_path / "figure.svg").iter("{http://www.w3.org/2000/svg}text")
    ]
    assert texts.count(printable(name)) == 2


def test_heads_in_order_of_position():
    corners = [(3, 3), (0, 3), (3, 0), (0, 0)]
    attention = np.zeros((4, 4, 4))
    for head, pixel in enumerate(corners):
        attention[head][pixel] = 1
    assert maps.ordered(attention, (1, 1), "position") == [3, 1, 2, 0]
    assert maps.ordered(attention, (1, 1), "distance")[0] == 3
    assert maps.ordered(attention, (1, 1), "index") == [0, 1, 2, 3]


def test_an_image_is_beside_its_own_attention(content_run):
    run = load_run(content_run)
    image = test_images.first_images(run, 2).images[1]
    layers = [layer[0] for layer in run.attention(image[None])]
    shown = [axes.images[0].get_array() for axes in maps.draw_image(image, "1", layers, (2, 5), "index", 1).axes[:2]]
    np.testing.assert_array_equal(shown[0], image[..., 0])
    np.testing.assert_array_equal(shown[1], layers[0][0, 2, 5])
    coarse = np.zeros((8, 8, 3), np.uint8)
    figure = maps.draw_image(coarse, "coarse", [np.full((1, 4, 4, 4, 4), 1 / 16)], (1, 3), "index", 2)
    (mark, _) = found(figure, "query")
    assert (mark.get_xy(), mark.get_width()) == ((5.5, 1.5), 2)  # rows 2 and 3, columns 6 and 7


def test_numbers_of_a_confusion_matrix_stand_in_the_row_of_their_class():
    (axes,) = confusion.draw(np.array([[3, 1], [0, 2]]), "ab").axes
    assert {text.get_position(): text.get_text() for text in axes.texts} == {(0, 0): "3", (1, 0): "1", (1, 1): "2"}
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.75, 0.25], [0, 1]])


def test_curves_of_several_runs(quadratic_run, content_run):
    figure = curves.draw([quadratic_run, content_run])
    accuracy, loss = figure.axes
    lines = {line.get_gid(): line for line in accuracy.lines}
    assert set(lines) == {"0 test", "0 train", "1 test", "1 train"}
    np.testing.assert_allclose(lines["1 test"].get_xydata(), [(1, 30), (2, 60)])
    np.testing.assert_allclose(loss.lines[0].get_xydata(), [(1, 2), (2, 1)])
    assert lines["0 test"].get_color() == lines["0 train"].get_color() != lines["1 test"].get_color()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [quadratic_run.name, content_run.name, "test", "train"]
    ten = curves.draw([quadratic_run] * 10, list("abcdefghij"))
    looks = [(line.get_color(), line.get_marker()) for line in ten.legends[0].get_lines()[:10]]
    assert [mark for _, mark in looks] == [""] * 9 + ["s"]  # there are nine colours
    assert len({*looks}) == 10
    names = [f"{n}" * 60 for n in range(4)]  # the legend stays inside
    figure = curves.draw([quadratic_run] * 4, names)
    figure.canvas.draw()
    inside, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert [text.get_text() for text in figure.legends[0].get_texts()][:4] == names
    assert whole.x0 <= inside.x0 < inside.x1 <= whole.x1
    assert whole.y0 <= inside.y0 < inside.y1 <= min(axes.get_tightbbox().y0 for axes in figure.axes)


def test_names_of_runs_are_shown_as_they_are(tmp_path):
    runs = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "b" / "_$x$"]
    assert curves.names(runs[:2]) == ["a/run", "b/run"]
    assert curves.names(runs[1:]) == ["run", "./_$x$"]
