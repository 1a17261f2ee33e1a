"""A checkpoint holds what was given to `save`, whatever the caller does while it is being written."""

import os
import time

import jax
import numpy as np
import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.runs import checkpoints as ckpt
from attn_cnn_jax.runs.checkpoints import TrainState
from attn_cnn_jax.training.mesh import data_mesh, place, replicated


@pytest.fixture
def slow_folders(monkeypatch):
    """As on a network file system: every folder takes its time."""
    create = os.mkdir

    def slowly(*arguments, **keywords):
        time.sleep(0.2)
        create(*arguments, **keywords)

    monkeypatch.setattr(os, "mkdir", slowly)


def test_a_checkpoint_shares_nothing_with_the_run_that_goes_on(tmp_path, slow_folders):
    mesh = data_mesh()
    # Orbax writes one copy of a short array, and of a long one a part from every device.
    parameters = place({"short": np.ones(3, np.float32), "long": np.ones((8, 1000), np.float32)}, mesh)
    statistics = {"on_host": np.ones(3, np.float32)}
    state = TrainState(place(np.int32(1), mesh), parameters, statistics, place({"mean": np.ones(4, np.float32)}, mesh))
    expected = jax.tree.map(lambda x: np.array(x, copy=True), state)
    config, progress, metrics = attention_config(), {"loss": [1.0]}, {"validation_accuracy": [0.5]}
    config.dataset.num_validation = 1
    with config.unlocked():
        config.numbers = [1]
    train = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0, out_shardings=replicated(mesh))
    train = train.lower(parameters).compile()
    with ckpt.open_checkpoints(tmp_path, config) as checkpoints:
        ckpt.save(checkpoints, 1, state, config, progress, metrics)
        for values in (config.numbers, progress["loss"], metrics["validation_accuracy"]):
            values.append(7)
        jax.block_until_ready(train(parameters))
        statistics["on_host"] += 1
        statistics["another"] = parameters.pop("short")
        assert not (tmp_path / "checkpoints/1").exists(), "written already: nothing was put to the test"
        checkpoints.wait_until_finished()
        restored, saved_progress = ckpt.restore(checkpoints, 1, expected._replace(step=state.step))
        for found, value in zip(jax.tree.leaves(restored), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(found, value)
        assert saved_progress == {"loss": [1.0]}
        assert ckpt.read_plain(checkpoints, 1, "config")["numbers"] == [1]
        assert checkpoints.metrics(1) == {"validation_accuracy": [0.5]}
