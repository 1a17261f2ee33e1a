"""Numbers that users see, by the programs that users run, at real widths: held against NumPy in double precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attn_cnn_jax
from attn_cnn_jax import compiling, reference
from attn_cnn_jax.analysis.convolution import measure_run
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import complete, create_model
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.sets import SPECS, Split
from attn_cnn_jax.runs import known_answers, selfcheck
from attn_cnn_jax.runs.evaluate import predictor, scores, total
from attn_cnn_jax.runs.metrics import last_records
from attn_cnn_jax.training.mesh import data_mesh, place
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate, matrices
from attn_cnn_jax.training.step import check_gradient, create_train_steps, initial_state

pytestmark = pytest.mark.as_users

NETWORKS = {
    "digits": ("digits", {}),
    "cifar10_cpu": ("cifar10_cpu", {}),
    "relative": ("digits", {"encoding": "relative"}),
    "learned and content": ("digits", {"encoding": "learned", "content": True}),
    "gate": ("digits", {"encoding": "quadratic", "content": True, "gate": True}),
    "pape": ("digits", {"encoding": "pape"}),
    "resnet": ("cifar10_cpu:resnet", {}),
}
BATCHES = dict.fromkeys(NETWORKS, (3, 100)) | {"digits": (1, 3, 64, 100, 355, 500), "cifar10_cpu": (1, 100, 500)}
COUNT = 355  # images; 37 with batches of few
DIFFERENT = 17  # images, which are repeated: NumPy takes a while for each


@functools.cache
def case(name):
    """A network with random weights, large enough that classes differ, and images with labels."""
    config_name, values = NETWORKS[name]
    config = load_config(config_name, [f"--config.model.{key}={value}" for key, value in values.items()])
    spec = SPECS["digits" if config_name == "digits" else "cifar10"]
    config = complete(config, spec)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (DIFFERENT, *spec.image_shape), np.uint8)[np.arange(COUNT) % DIFFERENT]
    labels = random.integers(0, 10, COUNT).astype(np.int32)
    return config, spec, create_model(config.model, rngs=nnx.Rngs(0)), Split(images, labels)


@pytest.mark.parametrize("name", NETWORKS)
def test_evaluation_is_right_for_any_batch_number_and_order_of_images(name, monkeypatch):
    """Held against NumPy here, to tighter bounds than the self-check's, which is left out."""
    monkeypatch.setattr(selfcheck, "once", lambda text, check: None)
    config, spec, model, split = case(name)
    known = reference.evaluate(lambda x: model(normalise(x, spec.mean, spec.std))[0], split.images[:DIFFERENT])
    known = known[np.arange(COUNT) % DIFFERENT]  # of the network as it was trained: its maps are not merged
    # Errors of rounding grow with the logits, at most 24 bits below the largest; a margin for chains of products.
    close = 2.0**-24 * 100 * np.abs(known).max()
    order = np.random.default_rng(1).permutation(COUNT)
    for batch_size in BATCHES[name]:
        logits = predictor(model, config, spec, spec.image_shape, batch_size)
        for count in (37,) if batch_size <= 3 else (1, COUNT) if batch_size == 100 else (COUNT,):
            rows = order[:count]
            found = np.concatenate(list(logits(lambda n, rows=rows: split.images[rows[n]], count)))
            np.testing.assert_allclose(found, known[rows], atol=close, rtol=0)
            result = total(iter([found]), split.labels[rows])
            right, losses = scores(known[rows], split.labels[rows])
            assert (result.right, result.count) == (right.sum(), count)
            np.testing.assert_allclose(result.loss, losses.mean(), rtol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_double_precision(name):
    config, spec, model, _ = case(name)
    skeleton, state = initial_state(model, create_optimizer(config.optimizer, lambda step: 0.1))
    mesh = data_mesh(jax.devices()[:1])
    check_gradient(config, mesh, skeleton, place(state, mesh), spec, spec.image_shape[:2])


@pytest.mark.usefixtures("promotion")  # Adam's bias correction promotes by itself
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "muon"])
def test_a_step_of_each_optimizer_is_that_of_double_precision(optimizer):
    config, spec, model, split = case("digits")
    config = config.copy_and_resolve_references()
    config.optimizer.name, config.train.batch_size, config.train.num_epochs = optimizer, 25, 2
    mesh, schedule = data_mesh(jax.devices()[:1]), learning_rate(config.optimizer, 2, 14)
    made = create_optimizer(config.optimizer, schedule, shaped=matrices(model))
    skeleton, state = initial_state(model, made)
    state = jax.device_get(state._replace(step=jnp.int32(14)))  # in the middle of the schedule
    steps, count = create_train_steps(config, mesh, skeleton, made, spec), np.int32(1)
    expected, _ = reference.evaluate(steps.__wrapped__, state, split, count)
    found, _ = steps(place(state, mesh), place(split, mesh), place(count, mesh))
    for name, before in state.parameters.items():
        change = np.asarray(expected.parameters[name]) - before
        error = np.linalg.norm(np.asarray(found.parameters[name], np.float64) - expected.parameters[name])
        # An update is added to a parameter in float32: that rounds by 2^-24 of the parameter.
        rounding = 2.0**-24 * np.linalg.norm(before)
        assert error <= 1e-3 * np.linalg.norm(change) + rounding, name


def test_training_records_what_the_run_evaluates(tmp_path, data_dir):
    values = {"dataset.name": "digits", "dataset.data_dir": data_dir, "train.num_epochs": 1}
    config = load_config("digits", [f"--config.{key}={value}" for key, value in values.items()])
    run = attn_cnn_jax.train(config, tmp_path / "run")
    record = last_records(tmp_path / "run")["test"]
    found = run.evaluate(*attn_cnn_jax.data.sources.load("digits", data_dir).test)
    assert (found.right, found.count) == (record["right"], record["count"])
    assert record["accuracy"] == found.accuracy
    np.testing.assert_allclose(record["loss"], found.loss, rtol=1e-6)


def test_attention_within_a_window_of_the_whole_image_is_the_network(data_dir):
    original, (full,) = measure_run(attn_cnn_jax.load_pretrained("digits"), (15,), data_dir=data_dir, test_images=101)
    np.testing.assert_array_equal(full.accuracy["truncated"], original)
    assert max(error.interior for error in full.error) < 1e-4


@pytest.mark.parametrize("program", known_answers.programs(), ids=lambda program: program.name)
def test_programs_of_public_reports_are_right_as_this_package_compiles(program):
    assert known_answers.measure(program).is_right


def test_without_its_options_this_jaxlib_is_wrong(monkeypatch):
    """What the options are for: where it passes no longer, an entry of `compiling.KNOWN` can go."""
    if not compiling.options():
        pytest.skip("no option is needed for this jaxlib")
    monkeypatch.setattr(compiling, "options", lambda platform=None: {})
    answers = [known_answers.measure(program) for program in known_answers.programs()]
    if all(answer.is_right for answer in answers):
        pytest.skip(f"this processor does not show the fault: {compiling.reasons()}")
    assert any("product" in answer.name for answer in answers if not answer.is_right)
