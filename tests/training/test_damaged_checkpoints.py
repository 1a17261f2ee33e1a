"""Checkpoints that are damaged, which training leaves aside, and those that the system cannot read, which stay."""

import builtins
import errno
import io
import os
import resource
import shutil

import jax
import numpy as np
import pytest
import tensorstore
from flax import nnx

from attn_cnn_jax import load_run
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training.loop import run
from tests.support.digits_run import STEPS_PER_EPOCH, assert_same_parameters, digits_config


@pytest.fixture
def config(data_dir):
    return digits_config(data_dir)


def damage(checkpoint, kind):
    """Spoils all files that hold numbers of a checkpoint's network."""
    for path in checkpoint.glob("network/**/d/*"):
        if kind == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# What Orbax's reading threads leave behind when a file is not whole.
orphans = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@orphans
@pytest.mark.parametrize("kind", ["truncated", "missing"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(digits_run, config, tmp_path, capfd, kind):
    workdir = tmp_path / "run"
    shutil.copytree(digits_run, workdir)
    last, before = 3 * STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH
    damage(workdir / "checkpoints" / str(last), kind)
    with pytest.raises(UserError, match=rf"the checkpoint of step {last} in .* is damaged"):
        load_run(workdir)
    run(config, workdir)
    out, err = capfd.readouterr()
    assert f"skipping: the checkpoint of step {last}" in out
    assert f"going on after step {before}" in out
    assert "Traceback" not in out + err
    assert_same_parameters(workdir, digits_run)


@orphans
def test_a_flipped_byte_anywhere_is_noticed_or_harmless(digits_run, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(digits_run, workdir)
    noticed, expected = 0, load_run(digits_run)
    for path in sorted((workdir / "checkpoints" / str(3 * STEPS_PER_EPOCH)).rglob("*")):
        if not path.is_file() or not path.stat().st_size:
            continue
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(flipped) // 2] ^= 0xFF
        path.write_bytes(flipped)
        try:
            found = load_run(workdir)
            jax.tree.map(np.testing.assert_array_equal, nnx.state(found.model), nnx.state(expected.model))
            assert found.config.to_dict() == expected.config.to_dict()
        except UserError:
            noticed += 1
        path.write_bytes(whole)
    assert noticed >= 3


@orphans
def test_without_an_intact_checkpoint_no_try_starts_anew(digits_run, config, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(digits_run, workdir)
    for checkpoint in (workdir / "checkpoints").iterdir():
        damage(checkpoint, "truncated")
    for _ in range(2):
        with pytest.raises(UserError, match=r"no checkpoint in .* is intact.*/damaged\n.* another --workdir"):
            run(config, workdir)
        assert (workdir / "metrics.jsonl").read_text() == (digits_run / "metrics.jsonl").read_text()
    assert len(list((workdir / "damaged").iterdir())) == 2


@pytest.fixture
def fail_to_open(monkeypatch):
    """`fail_to_open(ending, number)`: the next file whose path ends so is not opened, for this reason."""

    def fail(ending, number, module, open_file):
        def fail_once(path, *arguments, **keywords):
            if str(path).endswith(ending):
                monkeypatch.setattr(module, "open", open_file)
                raise OSError(number, os.strerror(number), str(path))
            return open_file(path, *arguments, **keywords)

        monkeypatch.setattr(module, "open", fail_once)

    return lambda ending, number: [fail(ending, number, module, module.open) for module in (builtins, io)]


def files_of(workdir):
    return {path: path.lstat().st_mtime_ns for path in workdir.rglob("*") if path.is_file() and path.name != ".lock"}


def assert_stops(call, workdir, reason):
    """The call is refused because the system fails, in two lines; nothing in the run directory changes."""
    before = files_of(workdir)
    with pytest.raises(UserError) as error:
        call()
    first, second = str(error.value).splitlines()
    assert first.startswith(f"the checkpoint of step {3 * STEPS_PER_EPOCH} in {workdir}")
    assert f"cannot be read: {reason}" in first
    assert "stays where it is" in second
    assert "the same command goes on" in second
    assert files_of(workdir) == before


NUMBERS = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
@pytest.mark.parametrize("file", ["config/metadata", "checksums/metadata", "network/_METADATA"])
def test_what_the_system_cannot_read_is_not_damaged(digits_run, fail_to_open, file, number):
    fail_to_open(f"{3 * STEPS_PER_EPOCH}/{file}", number)
    assert_stops(lambda: load_run(digits_run), digits_run, os.strerror(number))


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_a_run_stops_at_a_checkpoint_that_the_system_cannot_read(digits_run, config, fail_to_open, number, capsys):
    fail_to_open(f"{3 * STEPS_PER_EPOCH}/progress/metadata", number)
    assert_stops(lambda: run(config, digits_run), digits_run, os.strerror(number))
    run(config, digits_run)
    assert f"going on after step {3 * STEPS_PER_EPOCH} " in capsys.readouterr().out


@pytest.fixture
def tensorstore_opens_nothing(monkeypatch):
    """The process has as many files open as it may, but only while TensorStore reads."""
    open_array = tensorstore.open

    def fail(*arguments, **keywords):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            future = open_array(*arguments, **keywords)
            future.exception()  # waits until it is there
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return future

    monkeypatch.setattr(tensorstore, "open", fail)


@orphans
def test_what_tensorstore_cannot_read_is_not_damaged(digits_run, config, tensorstore_opens_nothing):
    assert_stops(lambda: load_run(digits_run), digits_run, os.strerror(errno.EMFILE))
    assert_stops(lambda: run(config, digits_run), digits_run, os.strerror(errno.EMFILE))


@pytest.fixture
def fail_to_show(monkeypatch):
    """`fail_to_show(ending, times)`: the system fails so often to say what lies at a path that ends so."""
    real, left = os.stat, {}

    def fail(path, *arguments, **keywords):
        for ending in left:
            if str(path).endswith(ending) and left[ending]:
                left[ending] -= 1
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *arguments, **keywords)

    monkeypatch.setattr(os, "stat", fail)
    return lambda ending, times: left.update({ending: times})


@pytest.mark.parametrize("part", ["", "/config", "/network"])
def test_what_the_system_does_not_show_is_not_missing(digits_run, fail_to_show, part):
    """`exists()` and `is_dir()` are False where the system cannot say."""
    fail_to_show(f"checkpoints/{3 * STEPS_PER_EPOCH}{part}", 1)
    assert load_run(digits_run).step == 3 * STEPS_PER_EPOCH
    fail_to_show(f"checkpoints/{3 * STEPS_PER_EPOCH}{part}", 1000)
    with pytest.raises(UserError, match=rf"the checkpoint of step {3 * STEPS_PER_EPOCH} in .*: Stale file handle"):
        load_run(digits_run)
