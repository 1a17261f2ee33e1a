"""Preparing and loading: replaced, killed, damaged, several at once, without a network."""

import os
import resource
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from attn_cnn_jax.data import cifar, sources
from attn_cnn_jax.data.sets import Source, fingerprint
from attn_cnn_jax.errors import UserError, command_line
from tests.support import cifar_archives
from tests.support.cifar_archives import prepare, random_pictures
from tests.support.own_pictures import write_folder

CIFAR10 = Source("cifar10")


def assert_holds(root, *, seed):
    """The data set in a folder is the one of that seed, whole, and nothing else is there."""
    images, labels = random_pictures("cifar10", seed)["train"]
    train = sources.read(CIFAR10, root).train
    np.testing.assert_array_equal(train.images, images)
    np.testing.assert_array_equal(train.labels, labels[:, -1])
    assert [path.name for path in (root / "prepared").iterdir() if path.suffix != ".lock"] == ["cifar10"]


@pytest.fixture
def offline(monkeypatch):
    """A proxy that refuses every connection: no network, on any machine."""
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")


def test_an_archive_comes_back_exactly_through_tfds_also_without_a_network(tmp_path, offline):
    """Its records are those of the stock name, which other programs read."""
    import tensorflow_datasets as tfds

    prepare(tmp_path, "cifar100", "python")
    dataset = sources.read(Source("cifar100"), tmp_path)
    for split, (images, labels) in random_pictures("cifar100").items():
        np.testing.assert_array_equal(dataset.splits[split].images, images)
        np.testing.assert_array_equal(dataset.splits[split].labels, labels[:, 1])
        records = tfds.data_source("cifar100", split=split, data_dir=tmp_path, download=False)
        records = sorted(records, key=lambda record: record["id"])
        assert [record["id"] for record in records] == [f"{split}_{n:05d}".encode() for n in range(len(labels))]
        np.testing.assert_array_equal([record["image"] for record in records], images)
        np.testing.assert_array_equal([(each["coarse_label"], each["label"]) for each in records], labels)
    assert dataset.spec.class_names == tuple(cifar_archives.CLASS_NAMES["cifar100"][1])
    assert "a reduced copy: the official data set has 50,000 training and 10,000 test images" in dataset.notes
    assert fingerprint(dataset) == fingerprint(dataset._replace(digest=None))


@pytest.mark.parametrize("kind", ["cifar", "folder"])
def test_a_disk_that_fills_up_is_said(tmp_path, kind):
    """No file may grow, which is the same as a full disk to tfds's writer, a C++ library, and to the arrays."""
    path = write_folder(tmp_path / "own", size=(100, 100))
    cifar_archives.write(tmp_path / "cifar10_binary_0.tar.gz")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UserError, match=r"Cannot write the data set .* to .*: File too large\.\nMake room"):
            prepare(tmp_path) if kind == "cifar" else sources.load(Source("folder", str(path)), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.suffix for path in (tmp_path / "prepared").iterdir()} == {".lock"}


def test_what_tfds_downloads_is_checked_by_the_checksum_of_the_official_archive():
    from attn_cnn_jax.data import tfds

    for name, folder in (("cifar10", "cifar-10-batches-bin"), ("cifar100", "cifar-100-binary")):
        assert [info.checksum for info in tfds.CIFAR[name].url_infos.values()] == [cifar.SHA256[folder]]


def test_offline_the_error_says_what_is_missing_and_the_ways_on(tmp_path, offline, monkeypatch):
    from attn_cnn_jax.data import tfds

    def refusal():
        with pytest.raises(UserError) as caught:
            sources.load("cifar10", tmp_path / "d e")
        return str(caught.value).splitlines()

    missing, ways = refusal()
    assert f"cifar10 is not in {tmp_path}/d e and cannot be downloaded (https://" in missing
    command = command_line("prepare", "cifar10", "--replace", "--data-dir", tmp_path / "d e")
    assert f"`{command} --archive PATH`" in ways
    assert "--config=configs/digits.py" in ways
    monkeypatch.setattr(tfds, "PROBE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a network that swallows everything
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        assert "timed out" in refusal()[0]
    assert time.monotonic() - start < 30


# Replaces the data set by another one, killed at a moment of it.
KILLED = """
import os, pathlib, shutil, signal, sys
from attn_cnn_jax.data import sources, tfds
from tests.support import cifar_archives

def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def killed_after_removing(path, rmtree=shutil.rmtree, **options):
    rmtree(path, **options)
    killed() if path.name == "cifar10" else None

root = pathlib.Path(sys.argv[1])
for moment in ("half", "whole"):
    if os.fork() == 0:
        if moment == "half":
            sources.hashes = killed
        else:
            shutil.rmtree = killed_after_removing
        cifar_archives.prepare(root / moment, seed=1, replace=True)
    assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
"""


def test_killed_while_replacing_one_of_both_is_there_whole(tmp_path, offline):
    for moment in ("half", "whole"):
        (tmp_path / moment).mkdir()
        prepare(tmp_path / moment)
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], timeout=120, check=True)
    for moment, left, seed in (("half", {"cifar10", "cifar10.new"}, 0), ("whole", {"cifar10.new"}, 1)):
        root = tmp_path / moment
        assert {path.name for path in (root / "prepared").iterdir() if path.suffix != ".lock"} == left
        assert not prepare(root, seed=seed)  # nothing has to be made
        with sources.making(sources.folder_of(CIFAR10, root), "cifar10"):
            pass
        assert_holds(root, seed=seed)


REPLACES = """
import pathlib, sys
from attn_cnn_jax.data import sources
sources.load("digits")
assert not {"tensorflow_datasets", "jax", "sklearn"} & {*sys.modules}
from tests.support import cifar_archives
root, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
cifar_archives.prepare(root, seed=seed, replace=True)
print(len(sources.load("cifar10", root).train.labels))
assert "tensorflow" not in sys.modules
"""


def test_several_at_once_wait_for_each_other_without_tensorflow_and_leave_nothing_in_tmpdir(tmp_path):
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    lines = [[sys.executable, "-c", REPLACES, tmp_path, str(seed)] for seed in range(2)]
    with sources.making(sources.folder_of(CIFAR10, tmp_path), "cifar10"):
        two = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) for line in lines]
        heads = [process.stdout.readline() for process in two]  # both come up against our lock
    tails = [process.communicate(timeout=120)[0].splitlines() for process in two]
    assert [process.returncode for process in two] == [0, 0]
    assert heads == ["Another process is preparing cifar10; waiting for it.\n"] * 2
    assert [tail[-1] for tail in tails] == ["25"] * 2
    assert not list((tmp_path / "tmp").iterdir())
    found = sources.read(CIFAR10, tmp_path).train.labels.tolist()
    seeds = [random_pictures("cifar10", seed)["train"][1][:, -1].tolist() for seed in range(2)]
    assert_holds(tmp_path, seed=seeds.index(found))


def test_damage_is_found_and_said_and_of_a_set_beyond_a_quarter_of_memory_not_all_is_read(tmp_path, monkeypatch):
    prepare(tmp_path)
    for file, damage in (
        ("train_images.npy", lambda data: data[:-1]),
        ("train_images.npy", lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]),
        ("test_labels.npy", lambda data: data[:-4] + b"\1\0\0\0"),
        ("about.json", lambda data: data[:-20]),
        ("about.json", lambda data: data.replace(b'"class_names"', b'"names"')),
    ):
        path = tmp_path / "prepared" / "cifar10" / file
        data = path.read_bytes()
        path.write_bytes(damage(data))
        with pytest.raises(UserError) as caught:
            sources.read(CIFAR10, tmp_path)
        path.write_bytes(data)
        first, second = str(caught.value).splitlines()
        assert f"{path.parent} is damaged: " in first
        assert f"`{command_line('prepare', 'cifar10', '--data-dir', tmp_path)} --replace`" in second
    expected = fingerprint(sources.read(CIFAR10, tmp_path))
    monkeypatch.setattr(sources, "machine_memory", lambda: 4 * 32 * 3072 - 1)
    monkeypatch.setattr(sources, "fingerprint", None)
    assert fingerprint(sources.read(CIFAR10, tmp_path)) == expected


def test_who_looks_is_told_how_to_prepare_and_who_prepares_where_it_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match=r"not in .*\nPrepare it by `.*prepare cifar10 --data-dir .*--data-dir=DIR"):
        sources.read(CIFAR10, tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Cannot write the data set cifar10 to .*file/prepared"):
        sources.load("cifar10", tmp_path / "file")
