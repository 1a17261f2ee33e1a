"""attn-cnn page: what it writes, and how it refuses."""

import base64
import html
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax.cli.main import main as attn_cnn
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.page import images as sources
from attn_cnn_jax.page.build import show
from attn_cnn_jax.runs import load
from tests.page.conftest import dataset_of

NAMES = tuple("abcdefghij")


@pytest.fixture
def viewer(monkeypatch, runs, tmp_path):
    """Runs the command on one of the untrained networks; reading a run back is tested elsewhere."""
    images = np.random.default_rng(1).integers(0, 256, (9, 32, 32, 3), np.uint8)
    dataset = dataset_of(images, [0, 0, 1, 2, 2, 2, 0, 1, 3], NAMES)
    monkeypatch.setattr(sources, "load_dataset", lambda config, data_dir: dataset)

    def main(name, *arguments):
        monkeypatch.setattr(load, "load_run", lambda workdir, step: runs[name])
        return attn_cnn(["page", str(tmp_path / "my run"), *map(str, arguments)])

    (tmp_path / "my run").mkdir()
    (tmp_path / "my run/config.json").touch()
    return main


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)[1])


def test_test_pictures_one_of_each_class_in_turn(viewer, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert viewer("quadratic", "--out", out, "--images", 6) == 0
    data = data_of(out)
    assert [p["name"] for p in data["pictures"]] == [f"test {n}" for n in (0, 2, 3, 8, 1, 4)]
    assert [p["label"] for p in data["pictures"]] == list("abcdac")
    assert "my run" in data["title"]
    assert "6 images" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["page.html"]  # nothing left beside it
    assert viewer("quadratic", "--out", out, "--images", 6, "--parameters", 0) == 0
    assert all(p["prediction"] in "abcdefghij" for p in data_of(out)["pictures"])
    assert viewer("quadratic", "--images", 1, "--size", "12x20") == 0
    assert data_of(tmp_path / "my run" / "viewer.html")["grid"] == [6, 10]


def test_test_images_one_pixel_high_or_wide_stay_as_they_are():
    for shape in ((1, 8, 1), (1, 8, 3), (8, 1, 3), (1, 1, 1)):
        images = np.random.default_rng(2).integers(0, 256, (5, *shape), np.uint8)
        found = sources.from_dataset(dataset_of(images, [0] * 5), 5, shape[:2])
        np.testing.assert_array_equal([image.pixels for image in found], images)


def test_files_are_cut_and_resized(viewer, tmp_path):
    wide = Image.new("RGB", (60, 20), "red")
    wide.paste("blue", (20, 0, 40, 20))
    wide.save(tmp_path / "wide <1>.png")
    Image.new("L", (8, 8)).save(tmp_path / "gray.png")
    out = tmp_path / "page.html"
    assert viewer("quadratic", "--out", out, "--image", tmp_path / "wide <1>.png", tmp_path / "gray.png") == 0
    first, second = data_of(out)["pictures"]
    assert (first["name"], second["name"]) == ("wide <1>.png", "gray.png")
    png = Image.open(io.BytesIO(base64.b64decode(first["source"].partition(",")[2])))
    assert png.size == (14, 10)
    assert np.asarray(png)[5, 7].tolist() == [0, 0, 255]  # the middle stays


def test_without_the_data_set_its_drawings_are_shown(viewer, monkeypatch, runs, tmp_path, capsys):
    """The run is of CIFAR-10, as the included ones; on a fresh machine there is nothing else."""

    def missing(config, data_dir):
        raise UserError("cifar10 is not here")

    monkeypatch.setattr(sources, "load_dataset", missing)
    out = tmp_path / "page.html"
    assert viewer("learned_content", "--out", out) == 0
    assert [picture["label"] for picture in data_of(out)["pictures"]] == ["airplane", "automobile", "ship", "truck"]
    assert data_of(out)["network"]["test"] is None
    said = capsys.readouterr().err
    assert "cifar10 is not here" in said
    assert viewer("learned_content", "--out", out, "--images", 0) == 0
    assert data_of(out)["pictures"] == []


def test_attention_that_the_page_cannot_compute_is_stored(viewer, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert viewer("learned_content", "--parameters", "0", "--images", "2", "--out", out) == 0
    assert "attention to 2 images" in (said := capsys.readouterr().out)
    assert "does not run the network: it has" in said
    assert '"count": 2' in out.read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("quadratic", ["--images", "10"], "of cifar10 has 9"),
        ("quadratic", ["--size", "9x9"], "multiples of 2"),
        ("quadratic", ["--size", "2x32768"], "32768 pixels on a side: a page shows at most 1024"),
        ("learned", ["--size", "40x40"], "learned relative positions reach"),
        ("learned_content", ["--parameters", "0", "--images", "0"], "and the page cannot compute it"),
    ],
)
def test_refusals_are_short(viewer, capsys, name, arguments, message):
    assert viewer(name, *arguments) == 1
    error = capsys.readouterr().err.strip()
    assert message in error
    assert error.count("\n") <= 1


def test_show_is_the_page_in_a_frame(quadratic_run, data_dir):
    shown = show(load.load_run(quadratic_run), images=3, data_dir=str(data_dir), height=500)
    frame = shown._repr_html_()
    assert re.fullmatch(r'<iframe srcdoc="[^"]*" title="[^"]*" style="[^"]*height: 500px[^"]*"></iframe>', frame)
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1])
    assert page == shown.html
    assert page.count('"source":"data:image/png') == 3
    assert len(repr(shown)) < 80
