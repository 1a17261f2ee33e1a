"""Runs that start from a network for other classes or images, or from a ResNet: what is new, and what is frozen."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config, complete, create_model, resnet_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.export import export
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs import weights
from attn_cnn_jax.training import loop
from attn_cnn_jax.training.start import begin, frozen_names, resized_table
from tests.support.digits_run import write_run
from tests.support.networks import logits_of


def config_of(data_dir, *, resnet=False, model=None, **start):
    """A small network on digits; three steps an epoch."""
    small = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 2, "downsample": 2}
    config = resnet_config(depth=10, **model or {}) if resnet else attention_config(**small | (model or {}))
    config.dataset.update({"name": "digits", "data_dir": str(data_dir)})
    config.train.update({"batch_size": 400, "num_epochs": 2, "logger": "none"})
    config.optimizer.warmup_fraction = 0.0
    config.start.update(start)
    return config


pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture
def first(tmp_path, data_dir):
    """`first(image_shape, num_classes, ...)`: a finished run of such a network, as if its data set were another."""

    def make(image_shape=(8, 8, 1), num_classes=7, *, resnet=False, **model):
        config = config_of(data_dir, resnet=resnet, model=model)
        config.model.update({"image_shape": image_shape, "num_classes": num_classes})
        return write_run(tmp_path / "first", config, create_model(config.model, rngs=nnx.Rngs(5)))

    return make


def parameters(run):
    return split(run.model)[1]


def test_another_number_of_classes_has_a_new_head_and_the_encoder_can_stay_frozen(first, data_dir, tmp_path, capsys):
    config = config_of(data_dir, run=str(first()), freeze="encoder")
    loop.run(config, tmp_path / "tuned")
    assert "a new classifier for 10 classes, before 7" in capsys.readouterr().out
    before, after = (parameters(load_run(tmp_path / name)) for name in ("first", "tuned"))
    assert after["classifier.kernel"].shape == (8, 10)
    for name in before:
        if not name.startswith("classifier."):
            np.testing.assert_array_equal(after[name], before[name])
    fresh = split(begin(complete(config), tmp_path / "again")[1])[1]
    assert np.any(after["classifier.kernel"] != fresh["classifier.kernel"])


@pytest.mark.parametrize("reach", [2, 5])
def test_tables_keep_the_vector_of_every_shift_that_both_know(reach):
    table = jnp.arange(7.0)[:, None] * jnp.ones((1, 2)) - 3  # the vector of shift s is (s, s), from -3 to 3
    shifts = np.arange(-reach + 1, reach)
    found = resized_table(table, len(shifts))
    np.testing.assert_array_equal(found[:, 0], np.clip(shifts, -3, 3))


@pytest.mark.parametrize("encoding", ["learned", "relative"])
def test_learned_tables_fit_a_larger_picture_and_attend_alike_near_zero(encoding, first, data_dir, tmp_path, capsys):
    options = {"encoding": encoding} | ({"relative_terms": ("position_position",)} if encoding == "relative" else {})
    origin = first((4, 6, 1), 10, **options)
    config = complete(config_of(data_dir, model=options, run=str(origin)))
    network = begin(config, tmp_path / "tuned").model
    assert "position tables are cropped or extended around shift zero" in capsys.readouterr().out
    small, large = (
        model.blocks[0].attention.position.position_terms(height, width, jnp.array([0]))
        for model, height, width in ((load_run(origin).model, 2, 3), (network, 4, 4))
    )
    ((small,), (large,)) = small.values(), large.values()
    shown = large[:, 0, 0, :2, :3]  # from the first pixel down and to the right: shifts that both tables know
    np.testing.assert_allclose(shown, small[:, 0, 0], rtol=1e-5, atol=1e-6)


def test_a_quadratic_network_takes_pictures_of_another_size_as_it_is(first, data_dir, tmp_path):
    origin = first((32, 16, 1), 10)
    network = begin(complete(config_of(data_dir, run=str(origin))), tmp_path / "tuned").model
    before, after = parameters(load_run(origin)), split(network)[1]
    assert all(np.array_equal(before[name], after[name]) for name in before | after)


def test_a_vector_per_pixel_cannot_be_resized(first, data_dir, tmp_path):
    origin = first((4, 4, 1), 10, encoding="absolute_learned")
    config = complete(config_of(data_dir, model={"encoding": "absolute_learned"}, run=str(origin)))
    with pytest.raises(UserError, match=r"position.position has the shape \(2, 2, 8\) there and \(4, 4, 8\) here"):
        begin(config, tmp_path / "tuned")


def test_a_frozen_resnet_keeps_its_running_statistics(first, data_dir, tmp_path):
    origin = first((8, 8, 1), 7, resnet=True, width=4)
    config = config_of(data_dir, resnet=True, model={"width": 4}, run=str(origin), freeze="stem*,blocks.0.*")
    config.train.num_epochs = 1
    loop.run(config, tmp_path / "tuned")
    before, after = (split(load_run(tmp_path / name).model) for name in ("first", "tuned"))
    for group in (1, 2):
        for name, array in before[group].items():
            is_frozen = name.startswith(("stem", "blocks.0."))
            if after[group][name].shape == array.shape:
                assert np.array_equal(after[group][name], array) == is_frozen, name


def test_training_starts_from_exported_weights_and_pretrained_names(first, data_dir, tmp_path, monkeypatch):
    from attn_cnn_jax.runs import pretrained

    origin = first()
    export(load_run(origin), tmp_path / "weights" / "mine")
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "weights")
    expected = parameters(load_run(origin))
    for name in (str(tmp_path / "weights" / "mine"), "pretrained:mine"):
        found = split(begin(complete(config_of(data_dir, run=name)), tmp_path / "tuned")[1])[1]
        assert np.array_equal(found["embedding.kernel"], expected["embedding.kernel"])
    with pytest.raises(UserError, match="allowed are mine"):
        begin(complete(config_of(data_dir, run="pretrained:theirs")), tmp_path / "tuned")
    assert weights.is_weights(tmp_path / "weights" / "mine")


def test_names_that_are_frozen():
    names = ["embedding.kernel", "blocks.0.dense.bias", "blocks.1.dense.bias", "classifier.bias"]
    assert frozen_names([], names) == []
    assert frozen_names(["encoder"], names) == names[:3]
    assert frozen_names(["blocks.*.bias", "classifier.*"], names) == names[1:]
    with pytest.raises(UserError, match=r"'blocks\.2\.\*', which fits no parameter"):
        frozen_names(["blocks.0.*", "blocks.2.*"], names)
    with pytest.raises(UserError, match="what leaves a parameter to train"):
        frozen_names(["*"], names)


def test_a_trained_resnet_goes_on_as_attention_that_computes_the_same(first, data_dir, tmp_path):
    sharpness, small = 14.0, {"width": 2}
    origin = first((8, 8, 1), 10, resnet=True, **small)
    config = config_of(
        data_dir, resnet=True, model=small | {"layers": "attention", "sharpness": sharpness}, run=str(origin)
    )
    begun, model = begin(complete(config), tmp_path / "attention")
    assert not any(isinstance(module, nnx.Conv) for _, module in nnx.iter_modules(model))
    np.testing.assert_allclose(model.blocks[0].conv1.attention.position.spread[...], (2 * sharpness) ** 0.5, rtol=1e-6)

    write_run(tmp_path / "attention", begun, model)
    before, after = load_run(origin), load_run(tmp_path / "attention")
    images = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 1), dtype=np.uint8)
    logits = np.asarray(logits_of(before.model, before.normalised(images)))
    found = logits_of(after.model, after.normalised(images))
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-3 * np.abs(logits).max())
    assert split(begin(complete(config), tmp_path / "attention").model)[0] == split(model)[0]
    config = config_of(data_dir, resnet=True, model=small, run=str(tmp_path / "attention"))
    with pytest.raises(UserError, match=r"config\.model\.layers"):
        begin(complete(config), tmp_path / "third")
