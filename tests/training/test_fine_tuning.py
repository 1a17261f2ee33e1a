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
from attn_cnn_jax.runs import pretrained
from attn_cnn_jax.training import loop
from attn_cnn_jax.training.start import begin, frozen_names, left_alone, resized_table
from tests.support.digits_run import write_run

pytestmark = pytest.mark.usefixtures("one_device")


def config_of(data_dir, *, resnet=False, model=None, **start):
    """A small network on digits; three steps an epoch."""
    small = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 2, "downsample": 2}
    config = resnet_config(depth=10, width=2, **model or {}) if resnet else attention_config(**small | (model or {}))
    config.dataset.update({"name": "digits", "data_dir": str(data_dir)})
    config.train.update({"batch_size": 400, "num_epochs": 1, "logger": "none"})
    config.optimizer.warmup_fraction = 0.0
    config.start.update(start)
    return config


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


def test_tables_keep_the_vector_of_every_shift_that_both_know():
    table = jnp.arange(7.0)[:, None] * jnp.ones((1, 2)) - 3  # the vector of shift s is (s, s), from -3 to 3
    for reach in (2, 5):
        shifts = np.arange(-reach + 1, reach)
        np.testing.assert_array_equal(resized_table(table, len(shifts))[:, 0], np.clip(shifts, -3, 3))


@pytest.mark.parametrize("encoding", ["learned", "relative"])
def test_learned_tables_fit_a_larger_picture_and_attend_alike_near_zero(encoding, first, data_dir, tmp_path, capsys):
    options = {"encoding": encoding} | ({"relative_terms": ("position_position",)} if encoding == "relative" else {})
    origin = first((4, 6, 1), 10, **options)
    network = begin(complete(config_of(data_dir, model=options, run=str(origin))), tmp_path / "tuned")[1]
    assert "position tables are cropped or extended around shift zero" in capsys.readouterr().out
    small, large = (
        model.blocks[0].attention.position.position_terms(height, width, jnp.array([0]))
        for model, height, width in ((load_run(origin).model, 2, 3), (network, 4, 4))
    )
    ((small,), (large,)) = small.values(), large.values()
    shown = large[:, 0, 0, :2, :3]  # from the first pixel down and to the right: shifts that both tables know
    np.testing.assert_allclose(shown, small[:, 0, 0], rtol=1e-5, atol=1e-6)


def test_of_other_encodings_a_quadratic_one_takes_any_image_and_a_vector_per_pixel_none(first, data_dir, tmp_path):
    origin = first((32, 16, 1), 10)
    network = begin(complete(config_of(data_dir, run=str(origin))), tmp_path / "tuned")[1]
    before, after = parameters(load_run(origin)), split(network)[1]
    assert all(np.array_equal(before[name], after[name]) for name in before | after)
    config = complete(config_of(data_dir, model={"encoding": "absolute_learned"}, run=str(tmp_path / "per_pixel")))
    small = config.copy_and_resolve_references()
    small.model.image_shape = (4, 4, 1)
    write_run(tmp_path / "per_pixel", small, create_model(small.model, rngs=nnx.Rngs(5)))
    with pytest.raises(UserError, match=r"position.position has the shape \(2, 2, 8\) there and \(4, 4, 8\) here"):
        begin(config, tmp_path / "tuned")


def test_frozen_parts_of_a_resnet_keep_their_running_statistics(data_dir):
    config = config_of(data_dir, resnet=True, freeze="stem*,blocks.0.*")
    model = create_model(config.model, rngs=nnx.Rngs(0))
    frozen = left_alone(config, model)
    norms = {
        ".".join(map(str, path)): each for path, each in nnx.iter_modules(model) if isinstance(each, nnx.BatchNorm)
    }
    assert {name for name, norm in norms.items() if norm.momentum == 1.0} == {
        name for name in norms if name.startswith(("stem", "blocks.0."))
    }
    assert set(frozen) == {name for name in split(model)[1] if name.startswith(("stem", "blocks.0."))}


def test_training_starts_from_exported_weights_and_pretrained_names(first, data_dir, tmp_path, monkeypatch):
    origin = first()
    export(load_run(origin), tmp_path / "weights" / "mine")
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "weights")
    expected = parameters(load_run(origin))
    for name in (str(tmp_path / "weights" / "mine"), "pretrained:mine"):
        found = split(begin(complete(config_of(data_dir, run=name)), tmp_path / "tuned")[1])[1]
        assert np.array_equal(found["embedding.kernel"], expected["embedding.kernel"])


def test_names_that_are_frozen():
    names = ["embedding.kernel", "blocks.0.dense.bias", "blocks.1.dense.bias", "classifier.bias"]
    assert frozen_names([], names) == []
    assert frozen_names(["encoder"], names) == names[:3]
    assert frozen_names(["blocks.*.bias", "classifier.*"], names) == names[1:]
    with pytest.raises(UserError, match=r"'blocks\.2\.\*', which fits no parameter"):
        frozen_names(["blocks.0.*", "blocks.2.*"], names)
    with pytest.raises(UserError, match="what leaves a parameter to train"):
        frozen_names(["*"], names)


def test_a_trained_resnet_goes_on_as_attention(first, data_dir, tmp_path):
    """Which computes the same: see the tests of the theorem."""
    origin = first((8, 8, 1), 10, resnet=True)
    config = config_of(data_dir, resnet=True, model={"layers": "attention", "sharpness": 14.0}, run=str(origin))
    begun, model = begin(complete(config), tmp_path / "attention")
    assert not any(isinstance(module, nnx.Conv) for _, module in nnx.iter_modules(model))
    np.testing.assert_allclose(model.blocks[0].conv1.attention.position.spread[...], (2 * 14.0) ** 0.5, rtol=1e-6)
    write_run(tmp_path / "attention", begun, model)
    assert split(begin(complete(config), tmp_path / "attention")[1])[0] == split(model)[0]
    with pytest.raises(UserError, match=r"config\.model\.layers"):
        begin(complete(config_of(data_dir, resnet=True, run=str(tmp_path / "attention"))), tmp_path / "third")
