"""Run directories that are none, are damaged, or come from elsewhere; and what is asked of a good one."""

import json
import shutil
import zlib

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax import load_run
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.runs import checkpoints, directory

COMMANDS = {
    "load_run": load_run,
    "heads": lambda run: main(["heads", str(run)]),
    "figures": lambda run: main(["figures", str(run)]),
    "page": lambda run: main(["page", str(run)]),
    "convolution": lambda run: main(["convolution", str(run)]),
    "compare": lambda run: main(["compare", str(run)]),
    "predict": lambda run: main(["predict", str(run), "picture.png"]),
    "export": lambda run: main(["export", str(run), "--format=safetensors", f"--out={run.parent / 'folder'}"]),
}


@pytest.fixture
def copy(quadratic_run, tmp_path):
    """A run directory that may be damaged."""
    return shutil.copytree(quadratic_run, tmp_path / "run")


def no_config(run):
    (run / "config.json").unlink()


def a_file(run):
    shutil.rmtree(run)
    run.write_text("x")


def empty(run):
    shutil.rmtree(run)
    run.mkdir()


def no_checkpoints(run):
    shutil.rmtree(run / "checkpoints")


def a_file_for_checkpoints(run):
    no_checkpoints(run)
    (run / "checkpoints").write_text("x")


def an_empty_checkpoint(run):
    shutil.rmtree(run / "checkpoints/20")
    (run / "checkpoints/20").mkdir()


def without(part):
    return lambda run: shutil.rmtree(run / "checkpoints/20" / part)


def with_junk(part, text):
    def damage(run):
        for path in (run / "checkpoints/20" / part).iterdir():
            if path.is_file():
                path.write_text(text)

    return damage


def of_a_newer_version(run):
    """A whole checkpoint, checksums included, of a network that is not known here."""
    edit_config(run, lambda values: values["model"].update(wings=2))


def very_deep(run):
    """A network that takes minutes to build, were it not for its arrays."""
    edit_config(run, lambda values: values["model"].update(num_layers=1000))


def edit_config(run, change):
    """Changes the configuration in a checkpoint, and its checksum."""

    def add(part, change):
        for path in (run / "checkpoints/20" / part).iterdir():
            if path.is_file() and path.name == "metadata":
                values = json.loads(path.read_text())
                change(values)
                path.write_text(json.dumps(values))
                return values

    config = add("config", change)
    add("checksums", lambda values: values.update(config=checkpoints.checksum_of_text(config)))


RUNS = [
    (empty, "is not a run directory"),
    (a_file, "is not a run directory"),
    (shutil.rmtree, "is not a run directory"),
    (no_config, "is not a run directory"),
    (no_checkpoints, "has no checkpoint yet"),
    (a_file_for_checkpoints, "has no checkpoint yet"),
    (an_empty_checkpoint, "the checkpoint of step 20"),
    (very_deep, "arrays, its configuration 1000 layers"),
    (of_a_newer_version, "was trained by another version of attn-cnn-jax: config.model.wings is not"),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("damage", "message"), RUNS, ids=[damage.__name__ for damage, _ in RUNS])
def test_a_run_that_is_none(copy, refused, damage, message, command):
    damage(copy)
    refused(lambda: COMMANDS[command](copy), message)


DAMAGE = [
    ("no network", without("network"), "its network cannot be read"),
    ("no config", without("config"), "its config cannot be read"),
    ("no checksums", without("checksums"), "its checksums cannot be read"),
    ("config {", with_junk("config", "{"), "its config cannot be read"),
    ("config []", with_junk("config", "[]"), "its config holds no JSON object"),
    ("config {}", with_junk("config", "{}"), "the checksum of its config is not the one saved"),
    ("checksums []", with_junk("checksums", "[]"), "its checksums holds no JSON object"),
    ("checksums {}", with_junk("checksums", "{}"), "the checksum of its config is not the one saved"),
]


@pytest.mark.parametrize(("damage", "message"), [case[1:] for case in DAMAGE], ids=[case[0] for case in DAMAGE])
def test_a_damaged_checkpoint(copy, refused, damage, message):
    damage(copy)
    refused(lambda: load_run(copy), message)


@pytest.mark.parametrize("step", ["newest", "best", -1, 3, 1.5, None, True, "20", ()])
def test_a_step_that_there_is_not(quadratic_run, refused, step):
    refused(lambda: load_run(quadratic_run, step), "no best checkpoint" if step == "best" else f"step={step!r}")


LINES = {
    "no JSON": b"{\n",
    "no object": b"[]\n",
    "no keys": b"{}\n",
    "wrong types": b'{"step": "a", "epoch": [], "split": 1, "loss": null, "accuracy": "", "layers": 3}\n',
    "no text": b"\xff\xfe\n",
    "very deep": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("line", LINES)
def test_damaged_records(copy, refused, line):
    for name, command in (("metrics", "figures"), ("metrics", "compare"), ("positions", "page")):
        path = copy / f"{name}.jsonl"
        before = path.read_bytes()
        path.write_bytes(before + LINES[line] + before)
        n = before.count(b"\n") + 1
        refused(
            lambda command=command: main([command, str(copy)]), f"{name}.jsonl is damaged in line {n}: remove that line"
        )
        path.write_bytes(before)


CONFIGS = {"no JSON": "{", "no object": "[]", "no values": "null", "very deep": "[" * 100_000, "no text": "\0"}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_damaged_config(copy, refused, name):
    (copy / "config.json").write_text(CONFIGS[name])
    refused(lambda: directory.read_config(copy), "config.json is damaged")


def test_checkpoints_of_another_run_are_not_set_aside_as_damaged(copy, content_run, refused, monkeypatch):
    from attn_cnn_jax.training.loop import run

    config = directory.read_config(copy)
    shutil.copytree(content_run / "checkpoints/20", copy / "checkpoints/21")
    config.train.batch_size = 80
    write_atomically(copy / "config.json", directory.to_json(config))
    refused(lambda: run(config, copy), "the checkpoint of step 21 in")
    assert not (copy / "damaged").exists()


FLAGS = [
    ("heads", "--step=99", "step=99: "),
    ("heads", "--step=best", "has no best checkpoint"),
    ("heads", "--query=8,0", "allowed is ROW,COLUMN from 0,0 to 7,7"),
    ("heads", "--query=-1,0", "allowed is ROW,COLUMN from 0,0 to 7,7"),
    ("heads", "--grid=100000", "--grid=100000: allowed is 1 to 15"),
    ("heads", "--csv=TMP", "Is a directory; choose another --csv=FILE"),
    ("heads", "--csv=TMP/no/file", "No such file or directory; choose another --csv=FILE"),
    ("figures", "--figures=pictures --out=TMP/o", "allowed is --figures=maps"),
    ("figures", "--figures=maps --out=TMP/text", "choose another --out=DIR"),
    ("figures", "--figures=maps --out=/proc/o", "choose another --out=DIR"),
    ("figures", "--query=99,99 --out=TMP/o", "allowed is ROW,COLUMN from 0,0 to 7,7"),
    ("figures", "--layer=9 --out=TMP/o", "--layer=9: allowed is 1 to 2"),
    ("figures", "--epochs=nan --out=TMP/o", "no positions were recorded at epoch nan"),
    ("figures", "--epochs=-5 --out=TMP/o", "no positions were recorded at epoch -5"),
    ("figures", "TMP --out=TMP/o", "has no metrics yet"),
    ("page", "--out=TMP", "Is a directory; choose --out=FILE"),
    ("page", "--out=TMP/no/file", "No such file or directory; choose --out=FILE"),
    ("page", "--images=-1 --out=TMP/o", "--images=-1: the test split of digits has"),
    ("page", "--images=99999 --out=TMP/o", "--images=99999: the test split of digits has"),
    ("page", "--image=TMP/nope.png --out=TMP/o", "there is no file"),
    ("page", "--image=TMP/text --out=TMP/o", "cannot be read as a picture"),
    ("page", "--image=TMP/half.png --out=TMP/o", "cannot be read as a picture"),
    ("page", "--image=TMP/bomb.png --out=TMP/o", "decompression bomb"),
    ("page", "--size=100000x100000 --out=TMP/o", "choose a smaller --size"),
    ("page", "--megabytes=0.0001 --out=TMP/o", "choose --megabytes above"),
    ("convolution", "--test-images=99999 --out=TMP/o", "the test split of digits has"),
    ("summary", "", "cannot be loaded"),
    ("predict", "TMP/nope.png", "there is no file"),
    ("predict", "TMP/text", "cannot be read as a picture"),
    ("predict", "TMP/half.png", "cannot be read as a picture"),
    ("predict", "TMP/empty", "holds no pictures"),
    ("predict", "TMP/half.png --step=99", "step=99: "),
    ("compare", "TMP", "is not a run directory"),
    ("compare", "--out=TMP/text", "choose another --out=DIR"),
    ("export", "--format=safetensors --out=TMP/text", "exists already"),
]


@pytest.mark.parametrize(("command", "flags", "message"), FLAGS, ids=[f"{c} {f}" for c, f, _ in FLAGS])
def test_what_is_asked_of_a_good_run(quadratic_run, tmp_path, refused, command, flags, message):
    (tmp_path / "text").write_text("x")
    (tmp_path / "empty").mkdir()
    Image.new("L", (50, 50)).save(tmp_path / "half.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "half.png").read_bytes()[:60])
    header = b"IHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0"
    claim = b"\0\0\0\r" + header + zlib.crc32(header).to_bytes(4, "big")
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + claim + b"\0\0\0\0IDAT")
    run = tmp_path / "text" if command == "summary" else quadratic_run
    refused(lambda: main([command, str(run), *flags.replace("TMP", str(tmp_path)).split()]), message)


NO_FLAGS = [
    ("heads", "--step=soon", "'soon': allowed is latest, best or"),
    ("heads", "--query=1", "'1': allowed is ROW,COLUMN"),
    ("heads", "--images=0", "'0': allowed is an integer from 1"),
    ("heads", "--grid=0", "'0': allowed is an integer from 1"),
    ("figures", "--figures=portrait", "portrait: choose some of"),
    ("figures", "--epochs=soon", "'soon': allowed are numbers"),
    ("figures", "--order=random", "invalid choice: 'random'"),
    ("figures", "--pictures=a", "'a': allowed are different integers from 0"),
    ("page", "--size=0x3", "'0x3': allowed is"),
    ("page", "--megabytes=nan", "'nan': allowed is a number above 0"),
    ("page", "--megabytes=-1", "'-1': allowed is a number above 0"),
    ("predict", "--top=0", "'0': allowed is an integer from 1"),
    ("export", "--format=tensorflow", "invalid choice: 'tensorflow'"),
    ("convolution", "--kernel-sizes=0", "'0': allowed is an integer from 1"),
    ("convolution", "--kernel-sizes=3,x", "'x': allowed is an integer from 1"),
]


@pytest.mark.parametrize(("command", "flag", "message"), NO_FLAGS, ids=[f"{c} {f}" for c, f, _ in NO_FLAGS])
def test_bad_flags(quadratic_run, refused, command, flag, message):
    refused(lambda: main([command, str(quadratic_run), flag]), f"{flag.partition('=')[0]}: {message}", status=2)


GOOD = np.zeros((2, 8, 8, 1), np.uint8)
PICTURES = {
    "one picture": GOOD[0],
    "five axes": GOOD[None],
    "in colour": np.zeros((2, 8, 8, 3), np.uint8),
    "channels first": np.zeros((2, 1, 8, 8), np.uint8),
    "floating point": GOOD.astype(np.float32),
    "not a number": np.full((2, 8, 8, 1), np.nan),
    "int64": GOOD.astype(np.int64),
    "boolean": GOOD.astype(bool),
    "none at all": GOOD[:0],
    "without rows": GOOD[:, :0],
    "ragged": [[1, 2], [3]],
    "a path": "picture.png",
    "objects": np.array([[[[None]]]]),
    "a dict": {},
}


@pytest.fixture(scope="module")
def position_only(quadratic_run):
    return load_run(quadratic_run)


@pytest.fixture(scope="module")
def by_content(content_run):
    return load_run(content_run)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(position_only, by_content, refused, name):
    refused(lambda: position_only.predict(PICTURES[name]), "allowed is (B, H, W, 1) uint8")
    refused(lambda: by_content.attention(PICTURES[name]), "allowed is (B, H, W, 1) uint8")


def test_more_about_pictures(position_only, by_content, make_run, refused):
    refused(lambda: by_content.attention(), "give images, uint8 (B, H, W, C)")
    refused(lambda: by_content.predict(np.zeros((1, 9, 9, 1), np.uint8)), "a picture of 9x9 pixels")
    halved = load_run(make_run("halved", downsample=2))
    refused(lambda: halved.predict(np.zeros((1, 7, 8, 1), np.uint8)), "images of 7x8 pixels: allowed are")
    for size in (0, -1, 1.5, "all", None):
        refused(lambda size=size: position_only.predict(GOOD, size), "allowed is an integer from 1")
