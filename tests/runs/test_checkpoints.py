"""Checkpoints: what is saved is what was given, damage is noticed and nothing is lost by it, the best one is found."""

import os
import re
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs import directory
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.loop import run
from attn_cnn_jax.training.mesh import data_mesh, place, replicated
from attn_cnn_jax.training.optimizer import create_optimizer
from attn_cnn_jax.training.resume import restore
from attn_cnn_jax.training.step import initial_state

# What Orbax's reading threads leave behind when a file is not whole.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
TINY = TrainState(np.int32(1), {"a": np.ones(1000, np.float32)}, {}, {"m": np.ones(4, np.float32)})


def test_a_checkpoint_shares_nothing_with_the_run_that_continues(tmp_path, monkeypatch):
    mkdir = os.mkdir  # as on a network file system: every folder takes its time
    monkeypatch.setattr(os, "mkdir", lambda *arguments, **keywords: time.sleep(0.2) or mkdir(*arguments, **keywords))
    mesh = data_mesh(jax.devices())
    # Orbax writes one copy of a short array, and of a long one a part from every device.
    parameters = place({"short": np.ones(3, np.float32), "long": np.ones((8, 1000), np.float32)}, mesh)
    statistics = {"on_host": np.ones(3, np.float32)}
    state = TrainState(place(np.int32(1), mesh), parameters, statistics, place({"mean": np.ones(4, np.float32)}, mesh))
    expected = jax.tree.map(lambda x: np.array(x, copy=True), state)
    config, progress = attention_config(), {"loss": [1.0]}
    with config.unlocked():
        config.numbers = [1]
    train = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0, out_shardings=replicated(mesh))
    train = train.lower(parameters).compile()
    with ckpt.saving(tmp_path, config) as checkpoints:
        ckpt.save(checkpoints, 1, state, config, progress, 0.5)
        config.numbers.append(7)
        progress["loss"].append(7)
        jax.block_until_ready(train(parameters))
        statistics["on_host"] += 1
        statistics["another"] = parameters.pop("short")
        assert not (tmp_path / "checkpoints/1").exists(), "written already: nothing was put to the test"
    restored, saved_progress = ckpt.restore(tmp_path, 1, expected._replace(step=state.step))
    for found, value in zip(jax.tree.leaves(restored), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(found, value)
    assert saved_progress == {"loss": [1.0]}
    assert ckpt.read_plain(tmp_path, 1, "config")["numbers"] == [1]
    assert ckpt.read_plain(tmp_path, 1, "validation") == {"accuracy": 0.5}


@pytest.fixture
def two(quadratic_run, tmp_path):
    """A run directory with intact checkpoints of steps 10 and 20, which may be damaged."""
    workdir = shutil.copytree(quadratic_run, tmp_path / "run")
    shutil.copytree(workdir / "checkpoints/20", workdir / "checkpoints/10")
    return workdir


def resume(workdir):
    """Restores as training does; returns the step."""
    config = ckpt.saved_config(workdir) or directory.read_config(workdir)
    model = create_model(config.model, rngs=nnx.Rngs(0))
    state = initial_state(model, create_optimizer(config.optimizer, lambda step: 0.1))[1]
    state = place(state, data_mesh(jax.devices()))
    return int(restore(config, workdir, state, ckpt.read_plain(workdir, 10, "data"))[0].step)


def truncate_arrays(checkpoint):
    for path in checkpoint.glob("network/**/d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace(part, text):
    return lambda checkpoint: (checkpoint / part / "metadata").write_text(text)


DAMAGE = {
    "truncated arrays": (truncate_arrays, "its network cannot be read"),
    "no checksums": (lambda checkpoint: shutil.rmtree(checkpoint / "checksums"), "its checksums cannot be read"),
    "another config": (replace("config", "{}"), "the checksum of its config is not the one saved"),
    "empty": (lambda checkpoint: (shutil.rmtree(checkpoint), checkpoint.mkdir()), "cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_moved_and_the_one_before_taken(two, name, capfd):
    damage, message = DAMAGE[name]
    damage(two / "checkpoints/20")
    with pytest.raises(UserError, match=rf"the checkpoint of step 20 in .*{message}"):
        load_run(two)
    assert resume(two) == 10
    out, err = capfd.readouterr()
    assert re.search(rf"skipping: the checkpoint of step 20 .*{message}", out)
    assert "Traceback" not in out + err
    assert ckpt.steps_in(two) == [10]
    assert [path.name.partition("-")[0] for path in (two / "damaged").iterdir()] == ["20"]


def test_a_command_says_damage_in_lines_and_ends(two):
    """Orbax's threads that still read complain after the first has failed, and must not keep the process."""
    truncate_arrays(two / "checkpoints/20")
    command = [sys.executable, "-m", "attn_cnn_jax", "heads", str(two)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 1
    assert found.stderr.startswith("the checkpoint of step 20 in")
    assert len(found.stderr.splitlines()) <= 2


def test_without_an_intact_checkpoint_training_stops_and_touches_nothing(two):
    for step in (10, 20):
        replace("progress", "{")(two / f"checkpoints/{step}")
    before = sorted(two.rglob("*"))
    with pytest.raises(UserError, match=r"no checkpoint in .* is intact; all stay where they are"):
        resume(two)
    assert sorted(two.rglob("*")) == before


def test_a_flipped_byte_anywhere_is_noticed_or_harmless(quadratic_run, tmp_path):
    """What no checksum watches, as the shardings of the devices that saved, is not needed either."""
    workdir = shutil.copytree(quadratic_run, tmp_path / "run")
    noticed, expected = [], load_run(workdir)
    for path in sorted((workdir / "checkpoints/20").rglob("*")):
        if "optimizer" in path.parts or not path.is_file() or not path.stat().st_size:
            continue  # what is not read, or empty
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(flipped) // 2] ^= 0xFF
        path.write_bytes(flipped)
        try:
            found = load_run(workdir)
            jax.tree.map(np.testing.assert_array_equal, nnx.state(found.model), nnx.state(expected.model))
            assert found.config.to_dict() == expected.config.to_dict()
        except UserError:
            noticed.append(path.name)
        path.write_bytes(whole)
    assert len(noticed) >= 3
    assert "_sharding" not in noticed


def test_a_run_does_not_continue_with_settings_that_change_its_numbers(two):
    """With another generator the data order, augmentation and dropout of the steps to come would be others."""
    before = jax.config.jax_default_prng_impl
    jax.config.update("jax_default_prng_impl", "rbg")
    try:
        with pytest.raises(UserError, match=rf"settings of JAX: JAX_DEFAULT_PRNG_IMPL \('{before}' there, 'rbg' here"):
            resume(two)
    finally:
        jax.config.update("jax_default_prng_impl", before)


def test_checkpoints_of_another_run_are_not_moved_as_damaged(two, content_run):
    shutil.copytree(content_run / "checkpoints/20", two / "checkpoints/21")
    with pytest.raises(UserError, match="the checkpoint of step 21 in"):
        run(directory.read_config(two), two)
    assert not (two / "damaged").exists()


def test_the_last_checkpoints_and_the_best_stay_and_damage_is_not_the_best(tmp_path):
    config = attention_config()
    config.checkpoint.keep_last = 2
    with ckpt.saving(tmp_path, config) as checkpoints:
        for step, accuracy in enumerate((0.5, 0.9, 0.1, 0.2), start=1):
            ckpt.save(checkpoints, step, TINY, config, {}, accuracy)
    with ckpt.saving(tmp_path, config) as checkpoints:  # of a process that continues
        ckpt.save(checkpoints, 5, TINY, config, {}, 0.3)
    assert ckpt.steps_in(tmp_path) == [5, 4, 2]
    assert ckpt.best_step(tmp_path) == 2
    path = tmp_path / "checkpoints/2/validation/metadata"
    whole = path.read_text()
    for text in (whole[:7], whole.replace("0.9", "0.8"), "[]"):
        path.write_text(text)
        assert ckpt.best_step(tmp_path) == 5


def test_a_run_is_read_while_training_removes_what_is_being_read(two, monkeypatch):
    read, calls = ckpt.read_arrays, []

    def read_late(workdir, step, *arguments):
        calls.append(step)
        if step == 20:
            (two / "checkpoints/20").rename(two / "checkpoints/30")
        return read(workdir, step, *arguments)

    monkeypatch.setattr(ckpt, "read_arrays", read_late)
    assert load_run(two).step == 30
    assert calls == [20, 30]


def test_a_path_through_a_link_is_the_systems_and_one_that_orbax_takes_for_another_is_read_but_not_trained_in(
    tmp_path, quadratic_run
):
    """TensorStore makes `link/..` the folder that the link is in; it and Orbax know patterns."""
    for name in ("a\\b", "lr[0.1]", "all*", "run?", "gs:/run"):
        with pytest.raises(UserError, match="choose another --workdir=DIR"):
            run(directory.read_config(quadratic_run), tmp_path / name)
    assert not list(tmp_path.iterdir())
    assert load_run(shutil.copytree(quadratic_run, tmp_path / "lr[0.1]*")).step == 20
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep/er")
    workdir = tmp_path / "link/../run"
    with ckpt.saving(workdir, attention_config()) as checkpoints:
        ckpt.save(checkpoints, 1, TINY, attention_config(), {})
    found = ckpt.read_arrays(workdir, 1, "network", ckpt.network(TINY))
    np.testing.assert_array_equal(found["parameters"]["a"], np.ones(1000))
    assert list((tmp_path / "deep/run/checkpoints/1/network").glob("d/*"))
    assert not (tmp_path / "run").exists()
