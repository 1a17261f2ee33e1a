"""Where contours of attention run in the figure of centres, and where the numbers of heads stand."""

import matplotlib
import numpy as np
import pytest
from matplotlib.path import Path as Polygon

from attn_cnn_jax.analysis.figures import centres, style
from tests.support.figures import found


def gaussian(centre, covariance, height=16, width=16):
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    delta = np.stack([rows - centre[0], columns - centre[1]], axis=-1)
    density = np.exp(-0.5 * np.einsum("kla,ab,klb->kl", delta, np.linalg.inv(covariance), delta))
    return density / density.sum()


def mass_inside(lines, probabilities, query):
    """Mass of the density inside contour lines in shifts from the query, by asking every point."""
    rows, columns, density = centres.density(probabilities)
    points = np.stack(np.meshgrid(columns - query[1], rows - query[0]), axis=-1).reshape(-1, 2)
    inside = np.zeros(len(points), bool)
    for line in lines.get_paths():
        line.should_simplify = False  # it would, as if these pixels were the screen's
        for polygon in line.to_polygons(closed_only=False):
            inside ^= Polygon(polygon).contains_points(points)
    return density.ravel()[inside].sum() / density.sum()


TILTED = np.array([[3.0, 1.2], [1.2, 1.0]])
SMOOTH = 1 + 0.3 * np.random.default_rng(0).random((16, 16))


@pytest.mark.parametrize(
    "probabilities",
    [
        gaussian((8.3, 6.9), TILTED),
        gaussian((1.0, 14.6), TILTED),  # cut off by two borders
        gaussian((-3.0, 8.0), 4 * np.eye(2)),  # centred outside
        gaussian((8.2, 8.1), 0.16 * np.eye(2)),
        gaussian((8.3, 6.9), TILTED) * SMOOTH / (gaussian((8.3, 6.9), TILTED) * SMOOTH).sum(),
    ],
    ids=["inside", "at the border", "centred outside", "narrow", "rough"],
)
def test_contours_hold_half_and_nine_tenths_of_the_attention(probabilities):
    layers = [np.broadcast_to(probabilities, (1, 16, 16, 16, 16))]
    figure = centres.draw(layers, [np.zeros((1, 2))], (8, 7))
    for share in (0.5, 0.9):
        (lines,) = found(figure, f"head 0 {share:.0%}")
        assert mass_inside(lines, probabilities, (8, 7)) == pytest.approx(share, abs=0.01)


def test_scattered_attention_has_no_contours_and_is_named():
    random = np.random.default_rng(0).random((16, 16)) ** 8
    maps_ = np.stack([gaussian((8, 8), TILTED), random / random.sum(), gaussian((3, 3), TILTED)])
    layer = np.broadcast_to(maps_[:, None, None], (3, 16, 16, 16, 16))
    figure = centres.draw([layer], [np.zeros((3, 2))], (8, 7))
    assert found(figure, "head 0 50%")
    assert not found(figure, "head 1 50%")
    assert figure.axes[0].get_title() == "layer 1, scattered: 2"
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[2] == "scattered: no contours, they would fall into more than 2 pieces"


@pytest.mark.parametrize("spread", [0.0, 0.4], ids=["one place", "loose"])
def test_numbers_of_heads_cover_neither_each_other_nor_a_mark(spread):
    places = spread * np.random.default_rng(0).normal(size=(9, 2))
    layer = np.broadcast_to(gaussian((8, 8), TILTED), (9, 16, 16, 16, 16))
    figure = centres.draw([layer], [places], (8, 8))
    notes = [note for head in range(9) for note in found(figure, f"number {head}")]
    assert [note.get_text() for note in notes] == [str(head + 1) for head in range(9)]
    style.pixels(figure)  # only then is a text's place known
    renderer = figure.canvas.get_renderer()
    # The digits alone; a text's own box has room for descenders.
    boxes = [matplotlib.text.Text.get_window_extent(note, renderer).padded(-2) for note in notes]
    marks = figure.axes[0].transData.transform(places[:, ::-1])
    for n, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[n + 1 :])
        assert not any(box.contains(*mark) for mark in marks)


def test_uniform_attention_has_no_contours_and_one_pixel_stays_in_its_pixel():
    uniform, one = np.full((8, 8), 1 / 64), np.zeros((8, 8))
    one[5, 2] = 1
    layer = np.broadcast_to(np.stack([uniform, one])[:, None, None], (2, 8, 8, 8, 8))
    figure = centres.draw([layer], [np.zeros((2, 2))], (4, 4))
    assert not found(figure, "head 0 50%")
    (lines,) = found(figure, "head 1 90%")
    vertices = lines.get_paths()[0].vertices + np.array([4, 4])
    np.testing.assert_array_less(np.abs(vertices - (2, 5)), 0.5)
