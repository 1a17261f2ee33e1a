"""The one evaluation: every image counted once, the same numbers for any batch size, devices and order of images."""

import jax
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import reference
from attn_cnn_jax.config import attention_config, complete, create_model
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.sets import SPECS, Split
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs import evaluate, selfcheck
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.training import loop
from attn_cnn_jax.training.mesh import data_mesh
from tests.support.wrong_compiler import wrong_compiler

SPEC = SPECS["digits"]


def network(seed=0, **values):
    config = attention_config(
        **{"image_shape": (8, 8, 1), "hidden_size": 16, "intermediate_size": 16, "num_layers": 2, "downsample": 1}
        | values
    )
    config.dataset.name = "digits"
    config = complete(config, SPEC)
    return config, create_model(config.model, rngs=nnx.Rngs(seed))


def images_of(count):
    random = np.random.default_rng(1)
    return Split(random.integers(0, 256, (count, 8, 8, 1), np.uint8), random.integers(0, 10, count).astype(np.int32))


def in_numpy(model, images, labels):
    """Right answers and mean loss, by NumPy in double precision, of the network without merged maps."""
    logits = reference.evaluate(lambda x: model(normalise(x, SPEC.mean, SPEC.std))[0], images)
    loss = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
    return int((logits.argmax(axis=1) == labels).sum()), loss.mean()


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.as_users), 8])
def test_every_image_counts_once_on_any_number_of_devices(devices):
    config, model = network()
    splits = {"validation": images_of(7), "test": images_of(37)}
    known = {name: in_numpy(model, *split) for name, split in splits.items()}
    mesh = data_mesh(jax.devices()[:devices])
    assert mesh.size == devices
    for config.train.eval_batch_size in (10, 64):
        found = loop.evaluations(model, config, splits, mesh)
        for name, split in splits.items():
            right, loss = known[name]
            assert (found[name].right, found[name].count) == (right, len(split.labels))
            np.testing.assert_allclose(found[name].loss, loss, rtol=1e-5)
            of_run = Run(config, 0, model).evaluate(*split)
            assert (of_run.right, of_run.count) == (right, len(split.labels))


@pytest.mark.as_users
def test_mirrored_images_share_their_mean_logits():
    config, model = network()
    run, (images, labels) = Run(config, 0, model), images_of(20)
    mean = (run.logits(images) + run.logits(images[:, :, ::-1])) / 2
    found = run.evaluate(images, labels, mirrored=True, batch_size=6)
    correct, losses = evaluate.scores(mean, labels)
    assert found.right == correct.sum()
    np.testing.assert_allclose(found.loss, losses.mean(), rtol=1e-6)


def test_products_have_the_configured_precision():
    config, model = network()
    skeleton, *arrays = evaluate.split(model)
    numbers = evaluate.numbers_of(config, SPEC)._replace(precision="high")
    text = evaluate.program("logits", skeleton, numbers, None, None).lower(tuple(arrays), images_of(3).images).as_text()
    assert all("HIGH" in line for line in text.splitlines() if "dot_general" in line)


def test_a_wrong_program_stops_an_evaluation_before_its_first_number(monkeypatch, tmp_path, self_check):
    config, model = network(num_layers=1, hidden_size=24)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wrong_compiler(monkeypatch)
    evaluate.program.cache_clear()
    run, split = Run(config, 0, model), images_of(5)
    for number in (lambda: run.evaluate(*split), lambda: run.predict(split.images)):
        with pytest.raises(UserError, match="self-check failed: the logits of noise differ"):
            number()
    evaluate.program.cache_clear()


def test_the_check_fails_for_nan_and_for_the_gradient_of_any_array():
    with pytest.raises(UserError, match="logits differ by nan"):
        selfcheck.compare("logits", [np.nan, 1], [1, 1], 1e-3)
    gradients = {"big": np.full(4, 1e3), "small": np.ones(4)}
    selfcheck.compare_gradients(gradients, gradients, 1e-4)
    for wrong in (0, np.nan):
        with pytest.raises(UserError, match="the gradient of small differ"):
            selfcheck.compare_gradients(gradients | {"small": np.full(4, wrong)}, gradients, 1e-4)


def test_a_program_is_checked_once(monkeypatch, tmp_path, self_check):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []
    for text in ("program", "program", "another"):
        selfcheck.once(text, lambda: calls.append(text))  # noqa: B023
    assert calls == ["program", "another"]
    monkeypatch.setattr(selfcheck.environment, "describe", lambda: {"jaxlib": "another"})
    selfcheck.once("program", lambda: calls.append("again"))
    assert calls[-1] == "again"

    made = []
    for _ in range(2):  # what NumPy could not follow is no pass
        selfcheck.once("unfollowed", lambda: bool(made.append(1)))
    assert len(made) == 2

    def fails():
        raise UserError("wrong")

    for _ in range(2):  # what failed is not kept
        with pytest.raises(UserError):
            selfcheck.once("wrong program", fails)
