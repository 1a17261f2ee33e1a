"""Preparing data sets: import, refusal, being killed, several at once, no network."""

import os
import pwd
import resource
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from attn_cnn_jax.data import sources
from attn_cnn_jax.data.builders import SPECS, builder_class, recipe
from attn_cnn_jax.data.preparation import archives, network, store
from attn_cnn_jax.errors import UserError, command_line
from tests.support import cifar_archives
from tests.support.cifar_archives import prepare, random_pictures

VERSION = "3.0.2"


def tree(folder):
    """Every file and folder below, but for archives, locks and the empty download folder of tfds."""
    paths = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {path for path in paths if not path.endswith((".lock", ".gz")) and not path.startswith("downloads")}


def assert_holds(root, *, seed):
    """The data set in a folder is the one of that seed, whole, and nothing else lies there."""
    images, labels = random_pictures("cifar10", seed)["train"]
    train = sources.load("cifar10", root, download=False).train
    np.testing.assert_array_equal(train.images, images)
    np.testing.assert_array_equal(train.labels, labels[:, -1])
    assert {path.name for path in (root / "cifar10").iterdir()} == {".lock", VERSION}
    assert {path.name for path in root.iterdir() if path.is_dir()} == {"cifar10", "downloads"}


@pytest.fixture
def offline(monkeypatch):
    """A proxy that refuses every connection: no network, on any machine."""
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_and_its_builder_agree(name):
    spec, builder = SPECS[name], builder_class(name)
    assert spec.name == builder.name == name
    assert hasattr(builder, "url") == hasattr(builder, "archive") == spec.has_archive
    assert len(spec.mean) == len(spec.std) == spec.image_shape[2]


@pytest.mark.parametrize(("name", "kind"), cifar_archives.FOLDERS)
def test_an_archive_comes_back_exactly_through_tfds(tmp_path, name, kind, caplog):
    prepare(tmp_path, name, kind)
    for first_or_cached in range(2):
        dataset = sources.load(name, tmp_path, download=False)
        for split, (images, labels) in random_pictures(name).items():
            np.testing.assert_array_equal(getattr(dataset, split).images, images, err_msg=str(first_or_cached))
            np.testing.assert_array_equal(getattr(dataset, split).labels, labels[:, -1])
        assert dataset.class_names == tuple(cifar_archives.class_names(name)[-1])
    assert "reduced copy with 25 training and 7 test pictures" in caplog.text


def test_the_stock_name_of_tfds_reads_what_we_prepared(tmp_path):
    import tensorflow_datasets as tfds

    prepare(tmp_path, "cifar100")
    stock = tfds.data_source("cifar100", split="train", data_dir=tmp_path, download=False)
    images, labels = random_pictures("cifar100")["train"]
    records = sorted(stock, key=lambda record: record["id"])
    assert [record["id"] for record in records] == [f"train_{i:05d}".encode() for i in range(25)]
    np.testing.assert_array_equal([record["image"] for record in records], images)
    np.testing.assert_array_equal([(r["coarse_label"], r["label"]) for r in records], labels)


def test_a_second_time_says_so_and_another_archive_needs_replace(tmp_path):
    prepare(tmp_path)
    said = []
    prepare(tmp_path, say=said.append)
    assert said == [f"cifar10 is already prepared in {tmp_path}/cifar10/{VERSION}"]
    with pytest.raises(UserError, match=r"from another archive\.\nAdd --replace"):
        prepare(tmp_path, seed=1)
    assert_holds(tmp_path, seed=0)
    prepare(tmp_path, seed=1, replace=True)
    assert_holds(tmp_path, seed=1)


def test_a_replacement_that_fails_keeps_the_old_data(tmp_path, monkeypatch):
    prepare(tmp_path)
    before = tree(tmp_path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tensorflow_datasets.core.writer.Writer.write", fail)
    with pytest.raises(UserError, match=f"Cannot write .*{VERSION}: No space left on device"):
        prepare(tmp_path, seed=1, replace=True)
    monkeypatch.undo()
    assert tree(tmp_path) == before
    assert_holds(tmp_path, seed=0)


def test_a_disk_that_fills_up_below_the_writer_of_records_is_said(tmp_path):
    """A C++ library says so, as a RuntimeError; here no file may grow, which is the same to it as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(UserError, match=r"Cannot write the data set digits to .*: File too large\.\nMake room"):
            sources.load("digits", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.glob("digits/*/*"))


def test_offline_the_error_says_what_is_missing_and_the_ways_on(tmp_path, offline):
    with pytest.raises(UserError) as caught:
        sources.load("cifar10", tmp_path / "d e")
    missing, ways = str(caught.value).splitlines()
    assert f"cifar10 is not in {tmp_path}/d e/cifar10/{VERSION}" in missing
    assert "cifar-10-binary.tar.gz: ProxyError" in missing
    assert "network" in ways
    assert f"`{command_line('prepare', 'cifar10', '--archive', 'PATH', '--data-dir', tmp_path / 'd e')}`" in ways
    assert "--config=configs/digits.py" in ways
    assert not list(tmp_path.iterdir())


def test_damaged_data_is_replaced_from_the_network(tmp_path, offline):
    """The check of the network read the damaged description, and said to add --replace."""
    prepare(tmp_path)
    (tmp_path / "cifar10" / VERSION / "dataset_info.json").write_text("{")
    with pytest.raises(UserError, match=r"cannot be downloaded .*ProxyError"):
        store.prepare(recipe("cifar10"), tmp_path, replace=True)


def test_a_network_that_swallows_everything_does_not_hold_us_for_minutes(tmp_path, offline, monkeypatch):
    monkeypatch.setattr(network, "PROBE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(UserError, match=r"no answer within 0\.5 s|Timeout"):
            store.prepare(recipe("cifar100"), tmp_path)
    assert time.monotonic() - start < 30
    assert not list(tmp_path.iterdir())


# Replaces the data set by another one, and is killed at a moment of it.
KILLED = """
import os, pathlib, signal, sys
from attn_cnn_jax.data.builders import cifar
from tests.support import cifar_archives

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

rename, examples = pathlib.Path.rename, cifar.Cifar10.examples

def killed_half_way(*arguments):
    for index, item in enumerate(examples(*arguments)):
        killed() if index == 12 else None
        yield item

def killed_after_renaming(path, target):
    rename(path, target)
    killed() if pathlib.Path(target).name == sys.argv[2] else None

if sys.argv[2] == "half":
    cifar.Cifar10.examples = killed_half_way
else:
    pathlib.Path.rename = killed_after_renaming
cifar_archives.prepare(pathlib.Path(sys.argv[1]), seed=1, replace=True)
"""


@pytest.mark.parametrize(
    ("moment", "left", "seed"),
    [
        ("half", {"incomplete.new", VERSION}, 0),
        (f"replaced.{VERSION}", {"incomplete.new", f"replaced.{VERSION}"}, 0),
        (VERSION, {"incomplete.new", f"replaced.{VERSION}", VERSION}, 1),
    ],
)
def test_killed_while_replacing_one_of_both_is_there_whole(tmp_path, moment, left, seed, offline):
    prepare(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, moment], capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    assert {path.name for path in (tmp_path / "cifar10").iterdir()} == {".lock", *left}
    store.prepare(recipe("cifar10"), tmp_path)  # the network is not needed
    assert_holds(tmp_path, seed=seed)


def test_the_old_data_survives_a_kill_and_then_a_failure(tmp_path, monkeypatch):
    prepare(tmp_path)
    parent = tmp_path / "cifar10"
    (parent / VERSION).rename(parent / f"replaced.{VERSION}")  # as a kill between the two steps leaves it
    monkeypatch.setattr("tensorflow_datasets.core.writer.Writer.write", None)
    with pytest.raises(TypeError):
        prepare(tmp_path, seed=1, replace=True)
    monkeypatch.undo()
    assert_holds(tmp_path, seed=0)


def test_what_a_killed_download_left_is_removed(tmp_path):
    remains = tmp_path / "downloads" / "cifar10" / "cifar-10.tmp.0123abcd"
    other = tmp_path / "downloads" / "cifar100" / "cifar-100.tmp.0123abcd"
    for folder in (remains, other):
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(b"x")
    prepare(tmp_path)
    assert not remains.exists()
    assert other.exists()  # another data set's download may be running


def test_a_version_folder_without_its_description_is_made_anew(tmp_path):
    folder = tmp_path / "cifar10" / VERSION
    folder.mkdir(parents=True)
    (folder / "cifar10-train.array_record-00000-of-00001").write_bytes(b"half")
    prepare(tmp_path)
    assert_holds(tmp_path, seed=0)


REPLACES = """
import pathlib, sys
from attn_cnn_jax.data import sources
from tests.support import cifar_archives
root, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
cifar_archives.prepare(root, seed=seed, replace=True, say=lambda line: print(line, flush=True))
print(len(sources.load("cifar10", sys.argv[1], download=False).train.labels))
"""


def test_three_at_once_wait_for_each_other_and_all_end_well(tmp_path):
    with store.locked(tmp_path / "cifar10" / VERSION, print):
        three = [
            subprocess.Popen([sys.executable, "-c", REPLACES, tmp_path, str(seed)], stdout=subprocess.PIPE, text=True)
            for seed in range(3)
        ]
        heads = [process.stdout.readline() for process in three]  # all come up against our lock
    tails = [process.communicate(timeout=120)[0] for process in three]
    assert [process.returncode for process in three] == [0, 0, 0]
    assert heads == ["Another process is preparing or reading cifar10; waiting for it.\n"] * 3
    assert tails == [f"Writing {tmp_path}/cifar10/{VERSION}\n25\n"] * 3
    labels = sources.load("cifar10", tmp_path).train.labels.tolist()
    assert_holds(
        tmp_path, seed=[random_pictures("cifar10", seed)["train"][1][:, -1].tolist() for seed in range(3)].index(labels)
    )


def test_who_waited_finds_the_work_done(tmp_path):
    content, said = archives.read(cifar_archives.write(tmp_path / "a.tar.gz"), "cifar10"), []
    final = store.folder(recipe("cifar10"), tmp_path)
    waiting = threading.Thread(
        target=store.prepare, args=(recipe("cifar10"), tmp_path), kwargs={"content": content, "say": said.append}
    )
    with store.locked(final, print):
        waiting.start()
        while waiting.is_alive() and not said:
            time.sleep(0.01)
        store.generate(recipe("cifar10"), final, content, print)
    waiting.join(60)
    assert [line.split()[0] for line in said] == ["Another", "cifar10"]
    assert said[1] == f"cifar10 is already prepared in {final}"


def test_to_decode_waits_for_who_replaces_and_to_read_the_cache_does_not(tmp_path, caplog):
    prepare(tmp_path)
    loading = threading.Thread(target=sources.load, args=("cifar10", tmp_path))
    with store.locked(tmp_path / "cifar10" / VERSION, print):
        loading.start()
        while loading.is_alive() and "Another process" not in caplog.text:
            time.sleep(0.01)
        assert not list(tmp_path.rglob("arrays.npz"))
    loading.join(60)
    caplog.clear()
    with store.locked(tmp_path / "cifar10" / VERSION, print):
        sources.load("cifar10", tmp_path)
    assert "Another process" not in caplog.text


def test_data_in_a_folder_that_cannot_be_locked_is_read_all_the_same(tmp_path, monkeypatch):
    prepare(tmp_path)

    def read_only(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store, "FileLock", read_only)
    assert len(sources.load("cifar10", tmp_path).train.labels) == 25
    with pytest.raises(UserError, match=r"Cannot write .* Permission denied"):
        prepare(tmp_path, seed=1, replace=True)


def test_without_a_home_folder_the_error_says_where_to_name_another(tmp_path, monkeypatch):
    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(UserError, match=r"~/tensorflow_datasets .*HOME is not set.*\nChoose .*--data-dir or TFDS"):
        sources.load("digits")
    assert store.folder(recipe("digits"), tmp_path) == tmp_path / "digits" / "1.0.0"


def test_neither_tensorflow_nor_anything_in_tmpdir(tmp_path):
    code = """
import pathlib, sys
import attn_cnn_jax.data.sources as sources
print({"tensorflow_datasets", "jax"} & {*sys.modules})
import attn_cnn_jax.config
print("tensorflow_datasets" in sys.modules)
from tests.support import cifar_archives
root = pathlib.Path(sys.argv[1])
cifar_archives.prepare(root)
sources.load("cifar10", root)
sources.load("digits", root)
print(any(name.split(".")[0] == "tensorflow" for name in sys.modules))
"""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    command = [sys.executable, "-c", code, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.stdout == "set()\nFalse\nFalse\n", done.stderr
    assert not list(temporary.iterdir())


@pytest.mark.skipif("ATTN_CNN_CIFAR10_ARCHIVE" not in os.environ, reason="ATTN_CNN_CIFAR10_ARCHIVE names no archive")
def test_the_full_archive(tmp_path):
    content = archives.read(os.environ["ATTN_CNN_CIFAR10_ARCHIVE"], "cifar10")
    store.prepare(recipe("cifar10"), tmp_path, content=content)
    dataset = sources.load("cifar10", tmp_path)
    assert dataset.train.images.shape == (50_000, 32, 32, 3)
    assert dataset.test.images.shape == (10_000, 32, 32, 3)
    assert np.bincount(dataset.train.labels).tolist() == [5_000] * 10
    assert np.bincount(dataset.test.labels).tolist() == [1_000] * 10
    np.testing.assert_allclose((dataset.train.images[::10] / 255).mean((0, 1, 2)), dataset.spec.mean, atol=0.005)
