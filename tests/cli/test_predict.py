"""attn-cnn predict: the probabilities of load_run, of files and folders, as text, JSON and CSV."""

import csv
import io
import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.figures import predictions
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.cli.predict import named, top_classes
from attn_cnn_jax.data import sources


@pytest.fixture(scope="module")
def images(data_dir):
    return sources.load("digits", data_dir).test.images[:3]


@pytest.fixture
def folder(images, tmp_path):
    """Three test images, saved without loss, and what is no image: Pillow only writes PDF, HDF5 takes plugins."""
    for n, image in enumerate(images):
        Image.fromarray(image[..., 0]).save(tmp_path / f"{n}.png")
    for name, content in {"._0.png": b"\0\5\x16\7", "x.pdf": b"%PDF", "x.h5": b"\x89HDF", "a\x1b.txt": b""}.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_json_has_the_probabilities_of_the_run(quadratic_run, images, folder, capsys):
    assert main(["predict", str(quadratic_run), str(folder), "--top=10", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    # What every tool leaves behind goes in silence (case 02); and the size is that of training.
    assert captured.err == f"{folder}: left out 3 that are no images: a\\x1b.txt, x.h5, x.pdf\n"
    assert [each["image"] for each in found] == [str(folder / f"{n}.png") for n in range(3)]
    expected = load_run(quadratic_run).predict(images)
    for each, row in zip(found, expected, strict=True):
        assert [c["class"] for c in each["classes"]] == np.argsort(-row).tolist()
        np.testing.assert_allclose([c["probability"] for c in each["classes"]], np.sort(row)[::-1], rtol=1e-6)
        assert all(c["name"] == str(c["class"]) for c in each["classes"])


def test_csv_and_text_have_a_line_per_image_and_others_are_resized(quadratic_run, images, folder, capsys):
    """Names of files cannot command a terminal."""
    large = Image.fromarray(images[2][..., 0]).resize((80, 80), Image.Resampling.NEAREST)
    large.convert("RGB").save(folder / "\x1b]0;x\x07.png")
    command = ["predict", str(quadratic_run), str(folder / "\x1b]0;x\x07.png"), str(folder / "0.png")]
    assert main([*command, "--top=2", "--csv"]) == 0
    captured = capsys.readouterr()
    assert "cropped and resized 1 of 2 images to 8x8 pixels" in captured.err
    lines = list(csv.DictReader(io.StringIO(captured.out)))
    assert [(line["image"][-5:], line["rank"]) for line in lines] == [
        (name, rank) for name in ("7.png", "0.png") for rank in "12"
    ]
    best = load_run(quadratic_run).predict(images[:1])[0].max()
    assert float(lines[2]["probability"]) == pytest.approx(best, rel=1e-5)
    assert main([*command, "--top=3"]) == 0
    text = capsys.readouterr().out
    header, *rows = text.splitlines()
    assert header.split() == ["image", "1", "2", "3"]
    assert [row.count("%") for row in rows] == [3, 3]
    assert all("\\x1b]0;x\\x07.png" in out and "\x1b" not in out for out in (captured.out, text))


def test_classes_without_names_have_numbers():
    ((first, second),) = top_classes(np.array([[0.2, 0.1, 0.7]]), (), 2)
    assert first == {"class": 2, "name": None, "probability": 0.7}
    assert (second["class"], named(second)) == (0, "class 0")


def test_the_figure_shows_images_classes_and_heads(quadratic_run, content_run, resnet_run, folder, capsys):
    """A last dot in its name is no extension: acc0.95 and acc0.97 are two figures (case 07)."""
    for run, name in ((quadratic_run, "acc0.95"), (content_run, "v1.2.svg"), (resnet_run, "seen.png")):
        command = ["predict", str(run), str(folder), "--top=2", "--csv", f"--figure={folder / 'f' / name}"]
        assert main(command) == 0
        stem = folder / "f" / name.removesuffix(".png").removesuffix(".svg")
        out, err = capsys.readouterr()
        assert err.splitlines()[1:] == [f"{stem}.png", f"{stem}.svg"]
        text = (stem.parent / f"{stem.name}.svg").read_text()
        assert all(name in text for name in ("0.png", "1.png", "2.png"))
        found = csv.DictReader(io.StringIO(out))
        assert all(f"{float(line['probability']):.0%}" in text for line in found if line["rank"] == "1")
        assert ("layer 2" in text) == (run != resnet_run)


def test_heads_are_drawn_where_they_look():
    """A head that attends to one pixel has its contour there, in pixels of the picture; a uniform head has none."""
    layer = np.full((2, 4, 4, 4, 4), 1 / 16)
    layer[0] = 0
    layer[0, ..., 1, 3] = 1
    axes = Figure().subplots()
    predictions.draw_heads(axes, layer, (8, 8))  # one pixel of attention is two of the picture
    (contour,) = axes.collections
    (points,) = [path.vertices for path in contour.get_paths()]
    np.testing.assert_allclose((points.min(axis=0) + points.max(axis=0))[1] / 2, 2.5)  # row 1: pixels 2 and 3
    assert points.max() == 6.5  # column 3, the last: the contour opens at the border
    axes = Figure().subplots()
    predictions.draw_heads(axes, np.full((1, 4, 2, 4, 2), 1 / 8), (8, 8))
    (query,) = axes.patches
    assert (query.get_xy(), query.get_width()) == ((4.5, 3.5), 2)  # of row 2 of 4 and column 1 of 2: around (5.5, 4.5)


def test_class_folders_give_the_accuracy(quadratic_run, data_dir, tmp_path, capsys):
    images, labels = sources.load("digits", data_dir).test.at(range(20))
    for n, (image, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image[..., 0]).save(tmp_path / str(label) / f"{n}.png")
    (tmp_path / "._7.png").write_bytes(b"\0\5\x16\7")  # what a tool leaves behind is no image beside the folders
    expected = load_run(quadratic_run).evaluate(images, labels)
    assert main(["predict", str(quadratic_run), str(tmp_path)]) == 0
    said = f"accuracy {expected.accuracy:.2%}, {expected.right} of 20 right by their folders; balanced"
    assert said in capsys.readouterr().out
    (tmp_path / "ten").mkdir()
    assert main(["predict", str(quadratic_run), str(tmp_path)]) == 1
    assert "ten is no class of the network; they are 0, 1, 2, 3, 4" in capsys.readouterr().err
