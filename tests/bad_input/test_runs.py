"""Run directories that are none, are damaged, or come from elsewhere; and what is asked of a good one."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis.test_images import dataset_of
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.runs import checkpoints, directory
from tests.support import cifar_archives
from tests.support.own_pictures import png


@pytest.fixture
def copy(quadratic_run, tmp_path):
    """A run directory that may be damaged."""
    return shutil.copytree(quadratic_run, tmp_path / "run")


def edit(run, group, **values):
    """Changes the configuration in the checkpoint, and its checksum."""
    paths = [run / f"checkpoints/20/{part}/metadata" for part in ("config", "checksums")]
    config, checksums = (json.loads(path.read_text()) for path in paths)
    config[group] |= values
    for path, value in zip(paths, (config, checksums | {"config": checkpoints.checksum_of_text(config)}), strict=True):
        path.write_text(json.dumps(value))


RUNS = {
    "a file": (lambda run: (shutil.rmtree(run), run.write_text("x")), "is not a run directory"),
    "gone": (shutil.rmtree, "is not a run directory"),
    "no config": (lambda run: (run / "config.json").unlink(), "is not a run directory"),
    "no checkpoints": (lambda run: shutil.rmtree(run / "checkpoints"), "has no checkpoint yet"),
    "newer": (lambda run: edit(run, "model", wings=2), "by another version of attn-cnn-jax: config.model.wings is not"),
    "other layers": (lambda run: edit(run, "model", num_layers=3), "or is not that of its config"),
    "a class that commands terminals": (
        lambda run: edit(run, "dataset", class_names=["\x1b]0;x", *"123456789"]),
        "config.dataset.class_names=",
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_none(copy, refused, name):
    damage, message = RUNS[name]
    damage(copy)
    refused(lambda: load_run(copy), message)
    refused(lambda: main(["heads", str(copy)]), message)


def test_a_figure_of_another_kind_is_refused_before_images_are_read(quadratic_run, refused, tmp_path):
    for name in ("x.pdf", "x.JPG"):
        command = ["predict", str(quadratic_run), "no_such.png", f"--figure={tmp_path / name}"]
        refused(lambda command=command: main(command), "are written as .png and .svg")


def test_looking_prepares_nothing_and_finds_data_that_is_elsewhere_now(copy, refused, tmp_path, monkeypatch):
    """Of a run trained with a folder of data that is gone, or with another TFDS_DATA_DIR; commands only read."""
    config = directory.read_config(copy)
    config.dataset.update({"name": "cifar10", "data_dir": str(tmp_path / "mine")})
    foreign = dataclasses.replace(load_run(copy), config=config)
    monkeypatch.setattr("attn_cnn_jax.cli.evaluate.load_run", lambda *args: foreign)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "default"))
    for flags, message in (
        ([], f"cifar10 is not in {tmp_path}/mine."),
        ([f"--data-dir={tmp_path}"], f"cifar10 is not in {tmp_path}."),
        ([f"--data-dir={tmp_path}/nowhere"], f"--data-dir={tmp_path}/nowhere: there is no"),
    ):
        refused(lambda flags=flags: main(["evaluate", str(copy), *flags]), message)
    (tmp_path / "default").mkdir()
    cifar_archives.prepare(tmp_path / "default")
    assert len(dataset_of(foreign).test.labels) == 7


LINES = (  # no object, wrong types, no text, very deep
    b"[]\n",
    b'{"step": "a", "epoch": [], "split": 1, "loss": null, "accuracy": "", "layers": 3}\n',
    b"\xff\xfe\n",
    b"[" * 100_000 + b"\n",
)


def test_damaged_records(copy, refused):
    for name, command in (("metrics", "compare"), ("positions", "page")):
        path = copy / f"{name}.jsonl"
        before = path.read_bytes()
        n = before.count(b"\n") + 1
        said = f"{name}.jsonl is damaged in line {n}: remove that line"
        for line in LINES:
            path.write_bytes(before + line + before)
            refused(lambda command=command: main([command, str(copy)]), said)
        path.write_bytes(before)


FLAGS = [
    ("heads", "--step=99", "step=99: "),
    ("heads", "--query=8,0", "allowed is ROW,COLUMN from 0,0 to 7,7"),
    ("heads", "--grid=100000", "--grid=100000: allowed is 1 to 15"),
    ("heads", "--csv=TMP", ": Is a directory"),
    ("figures", "--figures=pictures --out=TMP/o", "allowed is --figures=maps"),
    ("figures", "--figures=maps --out=TMP/text", "text: File exists"),
    ("figures", "--figures=scheme --layer=9 --out=TMP/o", "--layer=9: allowed is 1 to 2"),
    ("figures", "TMP --out=TMP/o", "has no metrics yet"),
    ("page", "--out=TMP", "Is a directory"),
    ("page", "--images=99999 --out=TMP/o", "99999 images: the test split of digits has 355"),
    ("evaluate", "--images=99999", "99999 images: the test split of digits has 355"),
    ("page", "--image=TMP/nope.png --out=TMP/o", "there is no file"),
    ("page", "--image=TMP/bomb.png --out=TMP/o", "make it smaller"),
    ("page", "--size=100000x100000 --out=TMP/o", "choose a smaller --size"),
    ("convolution", "--test-images=99999 --out=TMP/o", "the test split of digits has"),
    ("convolution", "--kernel-sizes=3,17 --out=TMP/o", "kernel size 17: allowed is up to 15"),
    ("summary", "", "cannot be loaded"),
    ("predict", "TMP/half.png", "cannot be read as an image"),
    ("predict", "TMP/empty", "holds no images"),
    ("compare", "--out=TMP/text", "text: File exists"),
]


def test_what_is_asked_of_a_good_run(quadratic_run, tmp_path, refused):
    (tmp_path / "text").write_text("x")
    (tmp_path / "empty").mkdir()
    Image.new("L", (50, 50)).save(tmp_path / "half.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "half.png").read_bytes()[:60])
    (tmp_path / "bomb.png").write_bytes(png((60_000, 60_000), b""))
    for command, flags, message in FLAGS:
        run = tmp_path / "text" if command == "summary" else quadratic_run
        argv = [command, str(run), *flags.replace("TMP", str(tmp_path)).split()]
        refused(lambda argv=argv: main(argv), message)
    refused(lambda: main(["heads", "pretrained:x"]), "no pretrained network is called 'x': allowed are cifar10,")
    refused(lambda: main(["heads", "~/x"]), f"{Path('~/x').expanduser()} is not a run directory")


NO_FLAGS = {
    "heads run --step=soon": "--step: 'soon': allowed is latest, best or",
    "heads run --images=0": "--images: '0': allowed is an integer from 1",
    "figures run --figures=portrait": "--figures: 'portrait': allowed is some of",
    "figures run --pictures=a": "--pictures: 'a': allowed is different integers from 0",
    "page run --size=0x3": "--size: '0x3': allowed is",
    "page run --parameters=-1": "--parameters: '-1': allowed is an integer from 0",
    "export run --format=tensorflow": "--format: invalid choice: 'tensorflow'",
    "convolution run --kernel-sizes=3,x": "--kernel-sizes: '3,x': allowed is an odd integer, or several",
    "summary --config.seed=1": "name the CONFIG that it changes",
    "prepare": "required: NAME",
    "prepare mnist": "'mnist': allowed is cifar10, cifar100, digits, digits_and_strokes, folder, npz or tfds:NAME",
    "prepare cifar10 --arkive x": "--arkive",
    "prepare digits --archive x": "digits takes no --archive",
    "prepare folder": "folder needs --path",
    "prepare digits --image-size=64": "digits takes no --image-size",
}


def test_bad_flags(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    for line, message in NO_FLAGS.items():
        refused(lambda line=line: main(line.split()), message, status=2)


GOOD = np.zeros((2, 8, 8, 1), np.uint8)
# One image, in colour, channels first, floating point, none, without rows, ragged, a path.
IMAGES = (GOOD[0], np.zeros((2, 8, 8, 3), np.uint8), GOOD.transpose(0, 3, 1, 2), GOOD.astype(np.float32), GOOD[:0])
IMAGES += (GOOD[:, :0], [[1, 2], [3]], "image.png")


def test_images(quadratic_run, content_run, make_run, refused):
    position_only, by_content = load_run(quadratic_run), load_run(content_run)
    for images in IMAGES:
        refused(lambda images=images: position_only.predict(images), "allowed is (B, H, W, 1) uint8")
        refused(lambda images=images: by_content.attention(images), "allowed is (B, H, W, 1) uint8")
    refused(lambda: by_content.attention(), "give images, uint8 (B, H, W, C)")
    refused(lambda: by_content.predict(np.zeros((1, 9, 9, 1), np.uint8)), "images of 9x9 pixels")
    halved = load_run(make_run("halved", downsample=2))
    refused(lambda: halved.predict(np.zeros((1, 7, 8, 1), np.uint8)), "images of 7x8 pixels: allowed are")
    for size in (0, 1.5, "all", None):
        refused(lambda size=size: position_only.predict(GOOD, size), "allowed is an integer from 1")
