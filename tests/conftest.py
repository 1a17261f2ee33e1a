"""Run directories as training leaves them, without the training."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, complete, create_model, resnet_config
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import fingerprint
from attn_cnn_jax.runs import checkpoints, directory
from attn_cnn_jax.runs.positions import create_recorder
from attn_cnn_jax.training import prepare
from attn_cnn_jax.training.mesh import data_mesh
from attn_cnn_jax.training.optimizer import create_optimizer
from attn_cnn_jax.training.step import initial_state

SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 2, "num_heads": 4, "downsample": 1}
SPREADS = (1.0, 0.6, 1.4, 0.001)  # of every layer's heads; the last head is degenerate


@pytest.fixture(scope="session")
def make_run(tmp_path_factory, data_dir):
    """Writes a run of two epochs on digits: `make_run(folder, model values) -> run directory`."""

    def make(folder, /, **model):
        workdir = tmp_path_factory.mktemp(folder)
        config = resnet_config(**model) if model.get("name") == "resnet" else attention_config(**SMALL | model)
        config.dataset.name, config.dataset.data_dir = "digits", str(data_dir)
        config = complete(config, sources.load("digits", data_dir).spec)
        network = create_model(config.model, rngs=nnx.Rngs(0))
        if config.model.get("encoding") == "quadratic":
            for block in network.blocks:
                heads = len(block.attention.position.spread[...])
                block.attention.position.spread[...] = np.resize(SPREADS, heads).astype(np.float32)
        skeleton, state = initial_state(network, create_optimizer(config.optimizer, lambda step: 0.1))
        directory.claim(workdir, config)
        record = create_recorder(config.model, skeleton, workdir, 0)
        for epoch in range(3):
            moved = {
                name: array + 0.1 * epoch if name.endswith("centre") else array
                for name, array in state.parameters.items()
            }
            record(10 * epoch, float(epoch), moved)
        with checkpoints.saving(workdir, config) as manager:
            checkpoints.save(manager, 20, state, config, {}, data=fingerprint(sources.load("digits", data_dir)))
        lines = [
            {"step": 10 * epoch, "epoch": epoch, "split": split, "loss": 2.0 / epoch, "accuracy": 0.3 * epoch}
            for epoch in (1, 2)
            for split in ("train", "test")
        ]
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return workdir

    return make


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def promotion():
    """Flax's norms promote float64 against float32 by themselves."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def threefry():
    """Random bits as users draw them, of which a batch of keys draws what each of them would."""
    with jax.default_prng_impl("threefry2x32"):
        yield


def on_one_device():
    """Training in this process uses one device: batches need not be split, and programs compile sooner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "mesh_for", lambda batch_size: data_mesh(jax.devices()[:1]))
        yield


one_device = pytest.fixture(on_one_device)
one_device_in_module = pytest.fixture(on_one_device, scope="module")


@pytest.fixture(scope="session")
def quadratic_run(make_run):
    return make_run("quadratic")


@pytest.fixture(scope="session")
def content_run(make_run):
    return make_run("content", encoding="learned", content=True)


@pytest.fixture(scope="session")
def resnet_run(make_run):
    return make_run("resnet", name="resnet", depth=10)
