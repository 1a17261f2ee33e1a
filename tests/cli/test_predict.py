"""attn-cnn predict: the probabilities of load_run, of files and folders, as text, JSON and CSV."""

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.figures import predictions
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.cli.predict import top_classes
from attn_cnn_jax.data import sources


@pytest.fixture(scope="module")
def images(data_dir):
    return sources.load("digits", data_dir).test.images[:3]


@pytest.fixture
def folder(images, tmp_path):
    """Three test pictures, saved without loss, and a file that is no picture."""
    for n, image in enumerate(images):
        Image.fromarray(image[..., 0]).save(tmp_path / f"{n}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    return tmp_path


def test_json_has_the_probabilities_of_the_run(quadratic_run, images, folder, capsys):
    assert main(["predict", str(quadratic_run), str(folder), "--top=10", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == f"{folder}: left out 1 that are no images: notes.txt\n"  # the size is that of training
    assert [each["picture"] for each in found] == [str(folder / f"{n}.png") for n in range(3)]
    expected = load_run(quadratic_run).predict(images)
    for each, row in zip(found, expected, strict=True):
        assert [c["class"] for c in each["classes"]] == np.argsort(-row).tolist()
        np.testing.assert_allclose([c["probability"] for c in each["classes"]], np.sort(row)[::-1], rtol=1e-6)
        assert all(c["name"] == str(c["class"]) for c in each["classes"])


def test_csv_has_a_line_per_picture_and_class(quadratic_run, images, folder, capsys):
    assert main(["predict", str(quadratic_run), str(folder / "2.png"), str(folder / "0.png"), "--top=2", "--csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(line["picture"][-5:], line["rank"]) for line in lines] == [
        ("2.png", "1"),
        ("2.png", "2"),
        ("0.png", "1"),
        ("0.png", "2"),
    ]
    best = load_run(quadratic_run).predict(images[2:3])[0].max()
    assert float(lines[0]["probability"]) == pytest.approx(best, rel=1e-5)


def test_text_has_a_line_per_picture(quadratic_run, folder, capsys):
    assert main(["predict", str(quadratic_run), str(folder), "--top=3"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["image", "1", "2", "3"]
    assert len(lines) == 3
    assert all(line.count("%") == 3 for line in lines)


def test_pictures_of_another_size_are_resized_and_the_command_says_so(quadratic_run, images, folder, capsys):
    large = Image.fromarray(images[0][..., 0]).resize((80, 80), Image.Resampling.NEAREST)
    large.convert("RGB").save(folder / "large.png")
    assert main(["predict", str(quadratic_run), str(folder), "--json"]) == 0
    captured = capsys.readouterr()
    assert "cropped and resized 1 of 4 images to 8x8 pixels" in captured.err
    *_, small_again = json.loads(captured.out)
    assert small_again["picture"].endswith("large.png")


def test_one_form_at_a_time(quadratic_run, folder, capsys):
    assert main(["predict", str(quadratic_run), str(folder), "--json", "--csv"]) == 2
    assert "not allowed with" in capsys.readouterr().err


def test_the_best_classes_come_first_without_names_too():
    ((first, second),) = top_classes(np.array([[0.2, 0.1, 0.7]]), (), 2)
    assert first == {"class": 2, "name": None, "probability": 0.7}
    assert second["class"] == 0
    assert top_classes(np.array([[0.2, 0.8]]), ("cat", "dog"), 5)[0][0]["name"] == "dog"


@pytest.mark.parametrize("kind", ["quadratic_run", "content_run", "resnet_run"])
def test_the_figure_shows_pictures_classes_and_heads(kind, request, images, folder, capsys):
    run = request.getfixturevalue(kind)
    assert main(["predict", str(run), str(folder), "--top=2", f"--figure={folder / 'seen.png'}"]) == 0
    assert capsys.readouterr().err.splitlines()[1:] == [str(folder / "seen.png"), str(folder / "seen.svg")]
    text = (folder / "seen.svg").read_text()
    assert all(name in text for name in ("0.png", "1.png", "2.png"))
    best = load_run(run).predict(images).max(axis=1)
    assert all(f"{probability:.0%}" in text for probability in best)
    assert ("layer 2" in text) == (kind != "resnet_run")


def test_heads_are_drawn_where_they_look():
    """A head that attends to one pixel has its contour there, in pixels of the picture; a uniform head has none."""
    from matplotlib.figure import Figure

    layer = np.full((2, 4, 4, 4, 4), 1 / 16)
    layer[0] = 0
    layer[0, ..., 1, 3] = 1
    axes = Figure().subplots()
    predictions.draw_heads(axes, layer, (8, 8))  # one pixel of attention is two of the picture
    (contour,) = axes.collections
    (points,) = [path.vertices for path in contour.get_paths()]
    np.testing.assert_allclose((points.min(axis=0) + points.max(axis=0))[1] / 2, 2.5)  # row 1: pixels 2 and 3
    assert points.max() == 6.5  # column 3, the last: the contour opens at the border


@pytest.mark.parametrize("name", ["acc0.95", "acc0.97.png", "v1.2.svg", "plain"])
def test_a_last_dot_in_the_name_of_a_figure_is_no_extension(name, quadratic_run, folder):
    """--figure=acc0.95 and --figure=acc0.97 both wrote acc0.png (case 07)."""
    assert main(["predict", str(quadratic_run), str(folder / "0.png"), f"--figure={folder / 'f' / name}"]) == 0
    stem = name.removesuffix(".png").removesuffix(".svg")
    assert sorted(path.name for path in (folder / "f").iterdir()) == [f"{stem}.png", f"{stem}.svg"]


def test_a_folder_may_hold_what_is_no_image(quadratic_run, folder, capsys):
    """Pillow only writes PDF, and opens HDF5 by plugins: they ended the command (case 02)."""
    for name, content in {
        "._0.png": b"\0\5\x16\7",
        "report.pdf": b"%PDF",
        "x.h5": b"\x89HDF",
        "a\x1b.txt": b"",
    }.items():
        (folder / name).write_bytes(content)
    assert main(["predict", str(quadratic_run), str(folder), "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 3
    assert captured.err == f"{folder}: left out 4 that are no images: a\\x1b.txt, notes.txt, report.pdf, x.h5\n"


@pytest.mark.parametrize("form", [[], ["--csv"]])
def test_names_of_files_cannot_command_a_terminal(form, quadratic_run, images, tmp_path, capsys):
    Image.fromarray(images[0][..., 0]).save(tmp_path / "\x1b]0;x\x07.png")
    assert main(["predict", str(quadratic_run), str(tmp_path), *form]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b]0;x\\x07.png" in out
