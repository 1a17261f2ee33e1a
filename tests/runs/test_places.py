"""Where the parts of a run lie: behind links, on other disks and bad file systems; and what is lost or edited."""

import errno
import fcntl
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attn_cnn_jax import load_run
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory, load
from attn_cnn_jax.training.loop import held, run
from attn_cnn_jax.training.start import Beginning

PICTURE = np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1)


@pytest.fixture
def copy(quadratic_run, tmp_path):
    """A run directory that may be damaged, with a checkpoint of step 20."""
    return shutil.copytree(quadratic_run, tmp_path / "run")


@pytest.fixture(scope="module")
def config(quadratic_run):
    return directory.read_config(quadratic_run)


def test_arrays_lie_where_the_system_says_that_the_run_is(tmp_path, config):
    """TensorStore makes `link/..` the folder that the link lies in."""
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep/er")
    workdir = tmp_path / "link/../run"
    workdir.mkdir()
    state = ckpt.TrainState(np.int32(1), {"a": np.ones(1000, np.float32)}, {}, {"m": np.ones(4, np.float32)})
    with ckpt.open_checkpoints(workdir, config) as checkpoints:
        ckpt.save(checkpoints, 1, state, config, {})
        checkpoints.wait_until_finished()
        part = ckpt.read_arrays(checkpoints, 1, "network", ckpt.network(state))
    np.testing.assert_array_equal(part["parameters"]["a"], np.ones(1000))
    assert list((tmp_path / "deep/run/checkpoints/1/network").glob("d/*"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a\\b", "a backslash"),
        ("lr[0.1]", r"\["),
        ("all*", r"\*"),
        ("run?", r"\?"),
        ("gs:/run", "gs:/"),
        (os.fsdecode(b"\xff\xfe"), "a name that is not UTF-8"),
    ],
)
def test_a_path_that_orbax_or_tensorstore_take_for_another_is_refused(tmp_path, config, name, what):
    with pytest.raises(UserError, match=f"below {what}; choose another --workdir=DIR"):
        run(config, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_run_can_be_read_below_a_pattern(quadratic_run, tmp_path):
    """Below one, no array of a new checkpoint could be found again: what is written in parts is joined by a pattern."""
    moved = shutil.copytree(quadratic_run, tmp_path / "lr[0.1]*")
    np.testing.assert_array_equal(load_run(moved).predict(PICTURE), load_run(quadratic_run).predict(PICTURE))


def test_a_damaged_checkpoint_is_set_aside_from_another_disk(copy, tmp_path, monkeypatch, config):
    (copy / "checkpoints").rename(tmp_path / "disk")
    (copy / "checkpoints").symlink_to(tmp_path / "disk")
    rename = os.rename

    def within_a_disk(source, target):
        if "disk" in str(source) and "disk" not in str(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", within_a_disk)
    files = sorted(path.relative_to(tmp_path / "disk/20") for path in (tmp_path / "disk/20").rglob("*"))
    with ckpt.open_checkpoints(copy, config) as checkpoints:
        ckpt.set_aside(checkpoints, copy, 20)
        assert ckpt.all_steps(checkpoints) == []
    (aside,) = (copy / "damaged").iterdir()
    assert sorted(path.relative_to(aside) for path in aside.rglob("*")) == files
    assert not list((tmp_path / "disk").iterdir())
    assert ckpt.lie_aside(copy)


@pytest.mark.parametrize("call", [load_run, lambda workdir: run(directory.read_config(workdir), workdir)])
def test_what_the_system_does_not_show_is_no_missing_folder(copy, monkeypatch, one_device, call):
    """The folder of the checkpoints itself: it was "no checkpoint yet" for one, "File exists" for the other."""
    stat = os.stat

    def fail(path, *arguments, **keywords):
        if str(path).endswith("run/checkpoints"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return stat(path, *arguments, **keywords)

    monkeypatch.setattr(os, "stat", fail)
    with pytest.raises(UserError, match=r"run/checkpoints: Stale file handle"):
        call(copy)


def test_a_run_is_read_while_training_removes_what_is_being_read(copy, monkeypatch):
    read, calls = load.read_arrays, []

    def read_late(checkpoints, step, *arguments):
        calls.append(step)
        if step == 20:
            shutil.copytree(copy / "checkpoints/20", copy / "checkpoints/30")
            shutil.rmtree(copy / "checkpoints/20")
        return read(checkpoints, step, *arguments)

    monkeypatch.setattr(load, "read_arrays", read_late)
    assert load_run(copy).step == 30
    assert calls == [20, 30]


def test_a_step_that_training_removes_is_refused_with_those_that_are_left(copy, monkeypatch):
    shutil.copytree(copy / "checkpoints/20", copy / "checkpoints/30")
    read = load.read_plain

    def read_late(*arguments):
        shutil.rmtree(copy / "checkpoints/20", ignore_errors=True)
        return read(*arguments)

    monkeypatch.setattr(load, "read_plain", read_late)
    with pytest.raises(UserError, match=r"step=20: .* has checkpoints of steps 30"):
        load_run(copy, step=20)


def test_four_threads_read_a_run(copy):
    images, stderr = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1), dtype=np.uint8), sys.stderr
    expected, hook = load_run(copy).predict(images), sys.unraisablehook
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: load_run(copy).predict(images), range(8)))
    assert sys.stderr is stderr
    assert sys.unraisablehook is hook
    for probabilities in found:
        np.testing.assert_array_equal(probabilities, expected)


def test_a_lost_configuration_is_that_of_the_checkpoints(copy, config):
    (copy / "config.json").unlink()
    wrong = config.copy_and_resolve_references()
    wrong.train.batch_size = 80
    with pytest.raises(UserError, match=r"train.batch_size \(100 there, 80 here\)"), held(copy, wrong):
        raise AssertionError("begins with another configuration")
    assert not (copy / "config.json").exists()
    with held(copy, config) as claim:
        claim(Beginning(config, None))
    assert directory.read_config(copy).to_dict() == config.to_dict()


def set_pruned(config, num_heads, named):
    """Changes a configuration to that of a pruned run, as asked for or, with heads, as the checkpoints have it."""
    config.model = config.model.to_dict() | {"num_heads": num_heads}
    config.start = config.start.to_dict() | {"run": "first", "prune": True, "heads": named, "new_head": bool(named)}


@pytest.fixture
def pruned(tmp_path, config):
    """A pruned run with a checkpoint: its directory, its configurations as asked for and as the checkpoint has it."""
    workdir, asked, resolved = tmp_path / "run", *(config.copy_and_resolve_references() for _ in range(2))
    set_pruned(asked, 9, ())
    set_pruned(resolved, 4, ((1, 3),))
    with held(workdir, asked) as claim:
        claim(Beginning(resolved, None, ({"layer": 1, "head": 3, "reason": "narrow"},)))
    state = ckpt.TrainState(np.int32(0), {"a": np.ones(3, np.float32)}, {}, {"m": np.ones(4, np.float32)})
    with ckpt.open_checkpoints(workdir, resolved) as checkpoints:
        ckpt.save(checkpoints, 0, state, resolved, {})
    return workdir, asked, resolved


def test_a_lost_configuration_leaves_what_is_known_of_pruned_heads(pruned, monkeypatch):
    workdir, asked, resolved = pruned
    known, given = (workdir / "start.json").read_text(), directory.read_given(workdir)
    assert "narrow" in known
    (workdir / "config.json").unlink()
    wrong = asked.copy_and_resolve_references()
    wrong.train.batch_size = 80
    with pytest.raises(UserError, match=r"another configuration: train\.batch_size"), held(workdir, wrong):
        raise AssertionError("begins with another configuration")
    assert (workdir / "start.json").read_text() == known
    with monkeypatch.context() as patch:
        patch.setattr(directory, "write_atomically", no_room_for_config)
        with pytest.raises(OSError, match="No space"), held(workdir, asked) as claim:
            claim(Beginning(resolved, None))
    assert (workdir / "start.json").read_text() == known
    with held(workdir, asked) as claim:
        claim(Beginning(resolved, None))
    assert (workdir / "start.json").read_text() == known
    assert directory.read_given(workdir).to_dict() == given.to_dict()


def no_room_for_config(path, content):
    if path.name == "config.json":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    write_atomically(path, content)


def test_a_pruned_run_that_cannot_begin_leaves_nothing_and_removes_nothing_of_others(tmp_path, config, monkeypatch):
    asked, resolved = (config.copy_and_resolve_references() for _ in range(2))
    set_pruned(resolved, 4, ((1, 3),))
    monkeypatch.setattr(directory, "write_atomically", no_room_for_config)
    with pytest.raises(OSError, match="No space"), held(tmp_path / "run", asked) as claim:
        claim(Beginning(resolved, None))
    assert not (tmp_path / "run").exists()
    (tmp_path / "start.json").write_text("a file of the user")
    with pytest.raises(UserError, match="refused"), held(tmp_path, asked):
        raise UserError("refused")
    assert [path.name for path in tmp_path.iterdir()] == ["start.json"]


def test_a_lost_configuration_of_a_pruned_run_is_what_was_asked_for(copy, config):
    """In its checkpoints stand the heads that are left."""
    asked, resolved = config.copy_and_resolve_references(), ckpt.saved_config(copy)
    for each, heads, named in ((asked, 9, ()), (resolved, 4, ((1, 3),))):
        set_pruned(each, heads, named)
    directory.keep_resolved(resolved, asked)
    directory.check_same("run", resolved, asked)
    asked.optimizer.learning_rate = 0.3
    with pytest.raises(UserError, match=r"optimizer.learning_rate"):
        directory.check_same("run", resolved, asked)


def test_an_edited_seed_is_not_the_one_that_the_run_was_trained_with(copy, config):
    edited = config.copy_and_resolve_references()
    edited.seed = 4
    write_atomically(copy / "config.json", directory.to_json(edited))
    with pytest.raises(UserError, match=r"config.json has seed 4, the checkpoint of step 20 has 0"):
        load_run(copy, seed=4)


@pytest.fixture
def measured(tmp_path, config):
    """Checkpoints of steps 1 to 3 with validation accuracies 0.5, 0.6 and 0.4, and how to spoil those of step 2."""
    config = config.copy_and_resolve_references()
    config.dataset.num_validation = 1
    state = ckpt.TrainState(np.int32(1), {"a": np.ones(3, np.float32)}, {}, {"m": np.ones(4, np.float32)})

    def save(step, accuracy):
        with ckpt.open_checkpoints(tmp_path, config) as checkpoints:
            ckpt.save(checkpoints, step, state, config, {}, {"validation_accuracy": accuracy})
            checkpoints.wait_until_finished()
            return ckpt.best_step(checkpoints)

    config.checkpoint.keep_last = 10
    assert [save(1, 0.5), save(2, 0.6), save(3, 0.4)] == [1, 2, 2]
    return tmp_path / "checkpoints/2", save


DAMAGE = {
    "truncated": lambda text: text[:7],
    "edited": lambda text: text.replace("0.6", "0.9"),
    "junk": lambda text: "[]",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_metrics_are_not_the_best_and_stop_nothing(measured, kind, caplog):
    """They were a JSONDecodeError as the checkpoints were opened, of whatever step."""
    checkpoint, save = measured
    path = checkpoint / "metrics/metrics"
    path.write_text(DAMAGE[kind](path.read_text()))
    assert save(4, 0.3) == 1
    assert f"the validation accuracy of the checkpoint of step 2 in {checkpoint.parent} is damaged" in caplog.text


def test_metrics_without_a_checksum_count_as_those_of_version_0_1_0_do(measured):
    checkpoint, save = measured
    path = checkpoint / "checksums/metadata"
    path.write_text(json.dumps({name: x for name, x in json.loads(path.read_text()).items() if name != "metrics"}))
    assert save(4, 0.3) == 2


def test_only_a_directory_of_its_own_goes_with_a_run_that_does_not_begin(tmp_path):
    for workdir in (tmp_path / "new", tmp_path):
        with pytest.raises(UserError, match="refused"), directory.locked(workdir):
            raise UserError("refused")
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(UserError, match=r"run cannot lock files \(flock\): No locks available"),
        directory.locked(tmp_path / "run"),
    ):
        raise AssertionError
    assert not (tmp_path / "run/config.json").exists()
