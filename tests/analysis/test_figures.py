"""Each figure rendered, and the data behind what is drawn: centres, contours, maps, curves."""

import json
import math
import re
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.path import Path as Polygon
from PIL import Image

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis import pictures
from attn_cnn_jax.analysis.figures import board, centres, contours, curves, labels, maps, scheme, span, style, training
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.models.attention import moments
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.theorem import span as theorem_span

ROOT = Path(__file__).parents[2]


def gaussian(centre, covariance, height=16, width=16):
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    delta = np.stack([rows - centre[0], columns - centre[1]], axis=-1)
    density = np.exp(-0.5 * np.einsum("kla,ab,klb->kl", delta, np.linalg.inv(covariance), delta))
    return density / density.sum()


def found(figure, gid):
    return figure.findobj(lambda artist: artist.get_gid() == gid)


def mass_inside(lines, probabilities, query):
    """Mass of the density inside contour lines in shifts from the query, by asking every point."""
    rows, columns, density = contours.density(probabilities)
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
    figure = centres.draw_layers(layers, [np.zeros((1, 2))], (8, 7))
    for share in (0.5, 0.9):
        (lines,) = found(figure, f"head 0 {share:.0%}")
        assert mass_inside(lines, probabilities, (8, 7)) == pytest.approx(share, abs=0.01)


def test_scattered_attention_has_no_contours_and_is_named():
    random = np.random.default_rng(0).random((16, 16)) ** 8
    maps_ = np.stack([gaussian((8, 8), TILTED), random / random.sum(), gaussian((3, 3), TILTED)])
    layer = np.broadcast_to(maps_[:, None, None], (3, 16, 16, 16, 16))
    figure = centres.draw_layers([layer], [np.zeros((3, 2))], (8, 7))
    assert found(figure, "head 0 50%")
    assert not found(figure, "head 1 50%")
    assert figure.axes[0].get_title() == "layer 1, scattered: 2"
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[2] == "scattered: no contours, they would fall into more than 2 pieces"


def test_two_blobs_are_two_pieces():
    two = gaussian((3, 3), np.eye(2)) + gaussian((12, 12), np.eye(2))
    _, _, density = contours.density(two / 2)
    assert contours.pieces(density, contours.level(density, 0.9)) == 2


def test_the_legend_names_both_contours():
    figure = centres.draw_layers(
        [np.broadcast_to(gaussian((8, 8), TILTED), (1, 16, 16, 16, 16))], [np.zeros((1, 2))], (8, 7)
    )
    legend = figure.legends[0]
    widths = {
        text.get_text(): line.get_linewidth() for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    assert widths == {"holds 50% of a head's attention": 1.0, "holds 90% of a head's attention": 0.5}
    for share in ("50%", "90%"):
        (lines,) = found(figure, f"head 0 {share}")
        assert lines.get_linewidth()[0] == widths[f"holds {share} of a head's attention"]


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.4], ids=["one place", "close", "loose"])
def test_numbers_of_heads_cover_neither_each_other_nor_a_mark(spread):
    places = spread * np.random.default_rng(0).normal(size=(9, 2))
    layer = np.broadcast_to(gaussian((8, 8), TILTED), (9, 16, 16, 16, 16))
    figure = centres.draw_layers([layer], [places], (8, 8))
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


def test_numbers_stay_inside_their_panel():
    figure = centres.draw_layers(
        [np.broadcast_to(gaussian((0, 0), TILTED), (1, 16, 16, 16, 16))], [np.array([[7.4, 8.4]])], (8, 7)
    )
    style.pixels(figure)
    (note,) = found(figure, "number 0")
    box = matplotlib.text.Text.get_window_extent(note, figure.canvas.get_renderer())
    assert figure.axes[0].bbox.contains(*box.get_points().mean(axis=0))
    assert labels.RADII[0] <= np.hypot(*note.xyann) <= labels.RADII[-1]


def test_contours_of_a_gaussian_are_its_ellipses():
    """Inside `x^T Sigma^-1 x = -2 log(1 - share)` lies that share of a Gaussian."""
    probabilities = gaussian((8.3, 6.9), TILTED)
    figure = centres.draw_layers([np.broadcast_to(probabilities, (1, 16, 16, 16, 16))], [np.zeros((1, 2))], (8, 7))
    for share in (0.5, 0.9):
        (lines,) = found(figure, f"head 0 {share:.0%}")
        vertices = lines.get_paths()[0].vertices[:, ::-1] + (8, 7) - (8.3, 6.9)  # row first, from the centre
        squared = np.einsum("na,ab,nb->n", vertices, np.linalg.inv(TILTED), vertices)
        np.testing.assert_allclose(squared, -2 * math.log(1 - share), rtol=0.03)


def test_density_keeps_the_moments_of_a_gaussian():
    probabilities = gaussian((8.3, 6.9), TILTED)
    rows, columns, density = contours.density(probabilities)
    mass = density / density.sum()
    row, column = mass.sum(axis=1) @ rows, mass.sum(axis=0) @ columns
    assert (row, column) == pytest.approx((8.3, 6.9), abs=0.01)
    assert mass.sum(axis=1) @ (rows - row) ** 2 == pytest.approx(3.0, rel=0.02)
    assert density.sum() / contours.FINENESS**2 == pytest.approx(1)


def test_uniform_attention_has_no_contours_and_one_pixel_stays_in_its_pixel():
    uniform, one = np.full((8, 8), 1 / 64), np.zeros((8, 8))
    one[5, 2] = 1
    layer = np.broadcast_to(np.stack([uniform, one])[:, None, None], (2, 8, 8, 8, 8))
    figure = centres.draw_layers([layer], [np.zeros((2, 2))], (4, 4))
    assert not found(figure, "head 0 50%")
    (lines,) = found(figure, "head 1 90%")
    vertices = lines.get_paths()[0].vertices + np.array([4, 4])
    np.testing.assert_array_less(np.abs(vertices - (2, 5)), 0.5)


def test_contours_stay_inside_the_picture():
    figure = centres.draw_layers(
        [np.broadcast_to(gaussian((0, 15), 9 * np.eye(2)), (1, 16, 16, 16, 16))], [np.zeros((1, 2))], (8, 7)
    )
    (lines,) = found(figure, "head 0 90%")
    vertices = lines.get_paths()[0].vertices + np.array([7, 8])
    assert vertices.min() >= -0.5
    assert vertices.max() <= 15.5
    assert vertices[:, 0].max() == pytest.approx(15.5, abs=0.05)  # up to the border
    assert vertices[:, 1].min() == pytest.approx(-0.5, abs=0.05)


def test_centres_are_drawn_where_the_parameters_say(quadratic_run):
    run = load_run(quadratic_run)
    figure = centres.draw_run(run, pictures.mean_attention(run, 1))
    for layer, block in enumerate(run.model.blocks):
        for head, (row, column) in enumerate(np.asarray(block.attention.position.centre[...])):
            (mark,) = [mark for mark in found(figure, f"centre {head}") if mark.axes is figure.axes[layer]]
            assert (*mark.get_xdata(), *mark.get_ydata()) == pytest.approx((column, row))
            assert mark.get_color() == style.look(head).colour


def test_centres_of_other_encodings_are_the_centre_of_mass(content_run):
    run = load_run(content_run)
    layers = pictures.mean_attention(run, 3)
    figure = centres.draw_run(run, layers)
    row, column = moments.centre_of_mass(layers[1][2, 4, 4]) - (4, 4)
    (mark,) = [mark for mark in found(figure, "centre 2") if mark.axes is figure.axes[1]]
    assert (*mark.get_xdata(), *mark.get_ydata()) == pytest.approx((column, row))


def test_attention_of_positions_is_not_copied_to_float64(quadratic_run):
    run = load_run(quadratic_run)
    for layer, expected in zip(pictures.mean_attention(run, 3), run.attention(), strict=True):
        assert layer.dtype == np.float32
        np.testing.assert_array_equal(layer, expected)


def test_attention_by_content_is_the_mean_over_pictures(content_run, monkeypatch):
    run = load_run(content_run)
    monkeypatch.setattr(pictures, "BYTES_PER_BATCH", 2 * pictures.attention_bytes(run))  # two batches and one picture
    expected = run.attention(pictures.first_pictures(run, 5).images)
    for layer, of_pictures in zip(pictures.mean_attention(run, 5), expected, strict=True):
        np.testing.assert_allclose(layer, of_pictures.mean(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-9)


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
    spread = np.linalg.cholesky(np.linalg.inv(TILTED))
    record = {"epoch": 1.0, "step": 1, "layers": [{"centre": [[0.5, 2.0]], "spread": [spread.tolist()]}]}
    (ellipse,) = found(training.draw([record], 0), "deviation 0")
    angles = np.linspace(0, 2 * np.pi, 50)
    vertices = ellipse.get_patch_transform().transform(np.stack([np.cos(angles), np.sin(angles)], axis=-1))
    rows_first = vertices[:, ::-1] - (0.5, 2.0)
    squared = np.einsum("na,ab,nb->n", rows_first, np.linalg.inv(TILTED), rows_first)
    np.testing.assert_allclose(squared, 1)


def test_chosen_epochs(quadratic_run):
    records = read_positions(quadratic_run)
    assert [record["epoch"] for record in training.choose(records, [2, 0], 8)] == [2, 0]
    many = [{"epoch": float(n)} for n in range(301)]
    chosen = [record["epoch"] for record in training.choose(many, None, 8)]
    assert (len(chosen), chosen[0], chosen[-1]) == (8, 0, 300)


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


def test_the_title_of_maps_says_their_order():
    assert maps.title((2, 5), None, "distance").endswith("2,5 (outlined); heads from near to far")
    assert maps.title((2, 5), 100, "index").endswith("mean over 100 test pictures; heads by number")


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


def test_figure_11_shows_the_residual_of_every_query(quadratic_run):
    attention = load_run(quadratic_run).attention()[0]
    figure = span.draw(attention, kernel_shifts((2, 2)), (4, 4), "title")
    (shown,) = found(figure, "residuals")
    np.testing.assert_allclose(shown.get_array().ravel(), theorem_span.residuals(attention, kernel_shifts((2, 2))))
    panels = [axes for axes in figure.axes if axes.images]
    np.testing.assert_array_equal(panels[0].images[0].get_array()[:, 0], np.eye(64)[4 * 8 + 4])


def test_heads_in_order_of_position():
    corners = [(3, 3), (0, 3), (3, 0), (0, 0)]
    attention = np.zeros((4, 4, 4))
    for head, pixel in enumerate(corners):
        attention[head][pixel] = 1
    assert maps.ordered(attention, (1, 1), "position") == [3, 1, 2, 0]
    assert maps.ordered(attention, (1, 1), "distance")[0] == 3
    assert maps.ordered(attention, (1, 1), "index") == [0, 1, 2, 3]


def test_layers_of_different_size_and_sixteen_heads():
    random = np.random.default_rng(0).random((16, 4, 4, 4, 4))
    random /= random.sum(axis=(-2, -1), keepdims=True)
    figure = maps.draw([random[:1], random], (1, 1), "index", "title")
    assert sum(bool(axes.images) for axes in figure.axes) == 17
    looks = [style.look(head) for head in range(16)]
    assert len(set(looks)) == 16
    figure = centres.draw_layers([random[:1], random], [np.zeros((1, 2)), np.zeros((16, 2))], (1, 1))
    assert len(found(figure, "centre 0")) == 2
    assert len(found(figure, "centre 15")) == 1


def test_a_picture_stands_beside_its_own_attention(content_run):
    run = load_run(content_run)
    image = pictures.first_pictures(run, 2).images[1]
    layers = [layer[0] for layer in run.attention(image[None])]
    figure = maps.draw_picture(image, "test picture 1", layers, (2, 5), "index", downsample=1)
    images = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    np.testing.assert_array_equal(images[0], image[..., 0])
    np.testing.assert_array_equal(images[1], layers[0][0, 2, 5])
    figure = maps.draw_picture(
        np.zeros((8, 8, 3), np.uint8), "coarse", [np.full((1, 4, 4, 4, 4), 1 / 16)], (1, 3), "index", 2
    )
    (mark, _) = found(figure, "query")
    assert (mark.get_xy(), mark.get_width()) == ((5.5, 1.5), 2)  # rows 2 and 3, columns 6 and 7


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


def test_names_of_runs_are_shown_as_they_are(tmp_path):
    runs = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "b" / "_$x$"]
    assert curves.names(runs[:2]) == ["a/run", "b/run"]
    assert curves.names(runs[1:]) == ["run", "./_$x$"]


def test_the_command_writes_all_figures_of_a_run(quadratic_run, tmp_path, capsys):
    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["figures", str(quadratic_run), f"--out={tmp_path / 'new' / 'folder'}"]) == 0
    written = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    names = ("scheme_layer2", "curves", "training_layer2", "course", "centres", "maps_4_4", "span_layer2")
    assert written == {f"{name}.{kind}" for name in names for kind in ("png", "svg")} | {"training_layer2.gif"}
    assert len(capsys.readouterr().out.splitlines()) == 15
    with Image.open(tmp_path / "new/folder/training_layer2.gif") as animation:
        assert animation.n_frames == 3
    assert dict(matplotlib.rcParams) == before


def test_one_command_draws_figures_6_to_10(content_run, tmp_path):
    """By default: means for the central pixel and another one, and three pictures; any others by index."""
    assert main(["figures", str(content_run), "--figures=maps,pictures", "--images=2", f"--out={tmp_path / 'a'}"]) == 0
    pixels = ("4_4", "2_2")
    expected = {f"maps_{q}.png" for q in pixels} | {f"picture_{n}_{q}.png" for n in range(3) for q in pixels}
    assert {path.name for path in (tmp_path / "a").glob("*.png")} == expected
    arguments = ["--figures=pictures", "--pictures=7,354", "--query=0,7", "--query=3,3", f"--out={tmp_path / 'b'}"]
    assert main(["figures", str(content_run), *arguments]) == 0
    expected = {f"picture_{n}_{q}.png" for n in (7, 354) for q in ("0_7", "3_3")}
    assert {path.name for path in (tmp_path / "b").glob("*.png")} == expected
    run = load_run(content_run)
    images, labels, names = pictures.pictures_at(run, [7])
    (probabilities,) = run.predict(images)
    best = probabilities.argmax()
    title = f"test picture 7: {names[labels[0]]}\npredicted {names[best]} ({probabilities[best]:.0%})"
    svg = (tmp_path / "b/picture_7_0_7.svg").read_text()
    assert all(line in svg for line in title.splitlines())


def test_curves_need_metrics_alone(quadratic_run, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "metrics.jsonl").write_text((quadratic_run / "metrics.jsonl").read_text())
    assert main(["figures", str(tmp_path / "kept"), "--figures=curves", f"--out={tmp_path}"]) == 0
    assert (tmp_path / "curves.png").is_file()


def test_a_resnet_has_curves_alone(resnet_run, tmp_path, capsys):
    assert main(["figures", str(resnet_run), f"--out={tmp_path}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"curves.png", "curves.svg"}
    assert main(["figures", str(resnet_run), "--figures=centres", f"--out={tmp_path}"]) == 1
    assert "allowed is --figures=curves" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query=8,8"], "query 8,8: allowed is"),
        (["--figures=pictures"], "allowed is --figures=maps"),
        (["--figures=scheme", "--layer=3"], "--layer=3: allowed is 1 to 2"),
        (["--figures=training", "--layer=3"], "--layer=3: allowed is 1 to 2"),
        (["--figures=training", "--epochs=0,9"], "no positions were recorded at epoch 9"),
        (["--figures=curves", "--out=/dev/null/x"], "cannot write /dev/null/x/curves.png"),
    ],
)
def test_what_a_user_gets_wrong_is_said_in_a_line(quadratic_run, arguments, message, capsys):
    assert main(["figures", str(quadratic_run), *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_picture_that_is_not_there(content_run, capsys):
    assert main(["figures", str(content_run), "--figures=pictures", "--pictures=355"]) == 1
    assert capsys.readouterr().err == "picture 355: the test split of digits has 0 to 354\n"


def test_bad_flags_exit_2():
    for flag in ("--figures=all", "--order=size", "--layer=0", "--epochs=a", "--pictures=x"):
        assert main(["figures", "run", flag]) == 2


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(style.UserError, match="No space left"):
        style.save(style.create_figure(1, 1), tmp_path, "figure")
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_the_figures_that_the_configuration_names(quadratic_run):
    run = load_run(quadratic_run)
    with run.config.unlocked():
        run.config.train.figures = ["maps", "training"]
    drawn = board.draw(run.config, 20, run.model, quadratic_run)
    assert set(drawn) == {"maps", "training_layer1", "training_layer2"}
    for picture in drawn.values():
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert picture.std() > 10  # something is drawn
