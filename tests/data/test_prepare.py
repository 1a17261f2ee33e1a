"""Preparing data sets: import, refusal, being killed, two at once, no network."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from attn_cnn_jax.cli import prepare
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.preparation import store
from attn_cnn_jax.errors import command_line
from tests.support import cifar_archives

COMMAND = [sys.executable, "-m", "attn_cnn_jax", "prepare"]
# A proxy that refuses every connection: no network, on any machine.
OFFLINE = {
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "NO_PROXY": "",
    "no_proxy": "",
}


def run(*args, code=None, env=()):
    command = [sys.executable, "-c", code, *map(str, args)] if code else [*COMMAND, *map(str, args)]
    env = {**os.environ, **OFFLINE, **dict(env)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)


def tree(folder):
    """Every file and folder below, but for locks and tfds's empty download folder."""
    paths = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {path for path in paths if not path.endswith(".lock") and not path.startswith("downloads")}


@pytest.fixture
def archive(tmp_path):
    return cifar_archives.write(tmp_path / "a.tar.gz")


@pytest.mark.parametrize(("name", "kind"), cifar_archives.FOLDERS)
def test_an_archive_comes_back_exactly_through_tfds(tmp_path, name, kind, capsys, caplog):
    archive = cifar_archives.write(tmp_path / "a.tar.gz", name, kind)
    assert main(["prepare", name, "--archive", str(archive), "--data-dir", str(tmp_path / "d")]) == 0
    printed = capsys.readouterr()
    assert f"not the official archive ({kind} layout)" in printed.out
    assert "Read back 25 training and 7 test pictures" in printed.out
    assert printed.err == ""
    assert "reduced copy with 25 training and 7 test pictures" in caplog.text
    for first_or_cached in range(2):
        dataset = sources.load(name, tmp_path / "d", download=False)
        for split, (images, labels) in cifar_archives.random_pictures(name).items():
            np.testing.assert_array_equal(getattr(dataset, split).images, images, err_msg=str(first_or_cached))
            np.testing.assert_array_equal(getattr(dataset, split).labels, labels[:, -1])
        assert dataset.class_names == tuple(cifar_archives.class_names(name)[-1])


def test_the_stock_name_of_tfds_reads_what_we_prepared(tmp_path):
    import tensorflow_datasets as tfds

    archive = cifar_archives.write(tmp_path / "a.tar.gz", "cifar100")
    prepare.prepare("cifar100", archive, tmp_path, say=lambda line: None)
    stock = tfds.data_source("cifar100", split="train", data_dir=tmp_path, download=False)
    images, labels = cifar_archives.random_pictures("cifar100")["train"]
    records = sorted(stock, key=lambda record: record["id"])
    assert [record["id"] for record in records] == [f"train_{i:05d}".encode() for i in range(25)]
    np.testing.assert_array_equal([record["image"] for record in records], images)
    np.testing.assert_array_equal([(r["coarse_label"], r["label"]) for r in records], labels)


def test_a_refused_archive_leaves_nothing_behind(tmp_path, capsys):
    archive = cifar_archives.write(tmp_path / "a.tar.gz", change=lambda files: files.pop("test_batch.bin"))
    assert main(["prepare", "cifar10", "--archive", str(archive), "--data-dir", str(tmp_path / "d")]) == 1
    assert "test_batch.bin is missing" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("flags", [[], ["mnist"], ["cifar10", "--arkive", "x"], ["digits", "--archive", "x"]])
def test_bad_flags_are_status_2(flags, capsys):
    assert main(["prepare", *flags]) == 2
    assert "attn-cnn prepare --help lists the flags" in capsys.readouterr().err


def test_a_second_time_says_so_and_another_archive_needs_replace(tmp_path, archive, capsys):
    first = ["prepare", "cifar10", "--archive", str(archive), "--data-dir", str(tmp_path / "d")]
    other = cifar_archives.write(tmp_path / "b.tar.gz", seed=1)
    second = ["prepare", "cifar10", "--archive", str(other), "--data-dir", str(tmp_path / "d")]
    assert main(first) == 0
    capsys.readouterr()
    assert main(first) == 0
    assert "already prepared" in capsys.readouterr().out
    assert main(second) == 1
    assert "from another archive.\nAdd --replace" in capsys.readouterr().err
    assert main([*second, "--replace"]) == 0
    images, _ = cifar_archives.random_pictures("cifar10", seed=1)["train"]
    np.testing.assert_array_equal(sources.load("cifar10", tmp_path / "d").train.images, images)
    assert {path.name for path in (tmp_path / "d" / "cifar10").iterdir()} == {".lock", "3.0.2"}


def test_a_replacement_that_fails_keeps_the_old_data(tmp_path, archive, monkeypatch):
    quiet = {"say": lambda line: None}
    prepare.prepare("cifar10", archive, tmp_path, **quiet)
    before = tree(tmp_path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tensorflow_datasets.core.writer.Writer.write", fail)
    with pytest.raises(store.UserError, match="No space left on device"):
        prepare.prepare("cifar10", archive, tmp_path, replace=True, **quiet)
    monkeypatch.undo()
    assert tree(tmp_path) == before
    assert len(sources.load("cifar10", tmp_path).train.labels) == 25


def test_offline_the_command_says_what_is_missing_and_the_three_ways_on(tmp_path):
    done = run("cifar10", "--data-dir", tmp_path / "d")
    assert done.returncode == 1
    missing, ways = done.stderr.splitlines()
    assert f"cifar10 is not in {tmp_path}/d/cifar10/3.0.2" in missing
    assert "cifar-10-binary.tar.gz: ProxyError" in missing
    assert "network" in ways
    assert f"{command_line('prepare', 'cifar10', '--data-dir', tmp_path / 'd')} --archive PATH" in ways
    assert "--config=configs/digits.py" in ways
    assert not (tmp_path / "d").exists()


def test_a_network_that_swallows_everything_does_not_hold_us_for_minutes(tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = run("cifar100", "--data-dir", tmp_path / "d", env={"HTTPS_PROXY": proxy, "https_proxy": proxy})
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2
    assert not (tmp_path / "d").exists()


# Stops for good when half of the pictures are written.
_STOPS_HALF_WAY = """
import sys, time
from attn_cnn_jax.data.builders import cifar
from attn_cnn_jax.cli.main import main
whole = cifar.Cifar10._generate_examples
def half(self, content, split):
    for index, item in enumerate(whole(self, content, split)):
        if index == 12:
            print("half", file=sys.__stdout__, flush=True)  # past the redirection
            time.sleep(600)
        yield item
cifar.Cifar10._generate_examples = half
main(["prepare", *sys.argv[1:]])
"""


def test_killed_half_way_the_next_call_starts_clean(tmp_path, archive):
    args = ["cifar10", "--archive", str(archive), "--data-dir", str(tmp_path)]
    victim = subprocess.Popen([sys.executable, "-c", _STOPS_HALF_WAY, *args], stdout=subprocess.PIPE, text=True)
    try:
        assert "half\n" in iter(victim.stdout.readline, "")
    finally:
        victim.kill()
        victim.communicate()
    assert list((tmp_path / "cifar10").glob("incomplete.*"))  # there is something to clean
    assert main(["prepare", *args]) == 0
    assert {path.name for path in (tmp_path / "cifar10").iterdir()} == {".lock", "3.0.2"}


def test_a_killed_download_leaves_no_temporary_folder_for_ever(tmp_path, archive):
    remains = tmp_path / "downloads" / "cifar10" / "cifar-10.tmp.0123abcd"
    other = tmp_path / "downloads" / "cifar100" / "cifar-100.tmp.0123abcd"
    for folder in (remains, other):
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(b"x")
    prepare.prepare("cifar10", archive, tmp_path, say=lambda line: None)
    assert not remains.exists()
    assert other.exists()  # another data set's download may be running


def test_a_version_folder_without_its_description_is_made_anew(tmp_path, archive):
    folder = tmp_path / "cifar10" / "3.0.2"
    folder.mkdir(parents=True)
    (folder / "cifar10-train.array_record-00000-of-00001").write_bytes(b"half")
    assert len(prepare.prepare("cifar10", archive, tmp_path, say=lambda line: None).train.labels) == 25


def test_two_at_once_one_works_and_one_waits(tmp_path, archive):
    command = [*COMMAND, "cifar10", "--archive", str(archive), "--data-dir", str(tmp_path)]
    with store._lock(tmp_path / "cifar10", print):
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        # Both come up against the lock that we hold, so that they really meet.
        heads = [[process.stdout.readline() for _ in range(3)] for process in both]
    tails = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("Another process is preparing cifar10" in head[2] for head in heads)
    assert sum("Writing" in tail for tail in tails) == 1
    assert all("Read back 25 training" in tail for tail in tails)
    assert not list((tmp_path / "cifar10").glob("incomplete.*"))


def test_neither_tensorflow_nor_anything_in_tmpdir(tmp_path, archive):
    code = """
import sys
from attn_cnn_jax.data import sources
from attn_cnn_jax.cli.main import main
status = main(["prepare", *sys.argv[1:]])
sources.load("cifar10", sys.argv[-1])
sources.load("digits", sys.argv[-1])
print("tensorflow" in sys.modules, any(name.startswith("tensorflow.") for name in sys.modules), status)
"""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    args = ["cifar10", "--archive", archive, "--data-dir", tmp_path / "d"]
    done = run(*args, code=code, env={"TMPDIR": str(temporary)})
    assert done.stdout.splitlines()[-1] == "False False 0", done.stderr
    assert not list(temporary.iterdir())


def test_importing_the_sources_is_cheap():
    code = "import sys, attn_cnn_jax.data.sources; print(*({'tensorflow_datasets', 'jax'} & {*sys.modules}))"
    assert run(code=code).stdout == "\n"


@pytest.mark.skipif("ATTN_CNN_CIFAR10_ARCHIVE" not in os.environ, reason="ATTN_CNN_CIFAR10_ARCHIVE names no archive")
def test_the_full_archive(tmp_path):
    lines, start = [], time.monotonic()
    dataset = prepare.prepare("cifar10", os.environ["ATTN_CNN_CIFAR10_ARCHIVE"], tmp_path, say=lines.append)
    print(f"prepared and read back in {time.monotonic() - start:.1f} s:", *lines, sep="\n")
    assert dataset.train.images.shape == (50_000, 32, 32, 3)
    assert dataset.test.images.shape == (10_000, 32, 32, 3)
    assert np.bincount(dataset.train.labels).tolist() == [5_000] * 10
    assert np.bincount(dataset.test.labels).tolist() == [1_000] * 10
    np.testing.assert_allclose((dataset.train.images[::10] / 255).mean((0, 1, 2)), dataset.spec.mean, atol=0.005)
