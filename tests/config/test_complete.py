"""What a configuration takes from its data set, and what contradicts it."""

import functools

import pytest

from attn_cnn_jax.config import attention_config, complete, validate
from attn_cnn_jax.data.builders import Spec
from attn_cnn_jax.errors import UserError


def test_complete_takes_the_classes_and_the_picture_size_of_the_data_set():
    config = attention_config()
    config.dataset.name = "cifar100"
    assert complete(config).model.num_classes == 100
    assert config.model.num_classes == 10  # a copy was completed
    config.dataset.name = "digits"
    assert complete(config).model.image_shape == (8, 8, 1)
    config.model.downsample = 16  # divides 32, not 8
    with pytest.raises(UserError, match="8x8 pictures"):
        complete(config)


def test_the_size_of_own_pictures_is_not_known_where_their_mean_is_given():
    config = attention_config(downsample=3)
    config.dataset.update({"name": "folder", "path": "own", "image_size": 48, "mean": (0.5,) * 3})
    config.augment.half_size_until = 0.5
    complete(config)
    size = functools.partial(Spec, "folder", num_classes=2, mean=(0.4,) * 3, std=(0.2,) * 3, class_names=("a", "b"))
    completed = complete(config, size(image_shape=(48, 48, 3)))
    assert (completed.model.image_shape, completed.dataset.mean) == ((48, 48, 3), (0.5,) * 3)
    with pytest.raises(UserError, match="0 for 32x48 pictures: both sides must be divisible by 6"):
        complete(config, size(image_shape=(32, 48, 3)))
    completed.dataset.path = ""
    validate(completed, data_is_known=True)  # a run's: its data may be gone
    with pytest.raises(UserError, match=r"dataset\.path='': allowed is a folder of class folders"):
        validate(completed)


def test_a_set_of_tfds_with_a_validation_split_is_named():
    config = attention_config()
    config.dataset.update({"name": "tfds:imagenette", "num_validation": 500})
    spec = Spec("tfds:imagenette", (32, 32, 3), 10, (0.4,) * 3, (0.2,) * 3, has_validation=True)
    with pytest.raises(UserError, match="allowed is 0 for tfds:imagenette, which has a validation split of its own"):
        complete(config, spec)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_classes", 11, "config.model.num_classes=11: allowed is 100 for cifar100; leave it out"),
        (
            "image_shape",
            (16, 16, 3),
            "config.model.image_shape=(16, 16, 3): allowed is (32, 32, 3) for cifar100; leave",
        ),
    ],
)
def test_complete_refuses_what_contradicts_the_data_set(key, value, message):
    config = attention_config(**{key: value})
    config.dataset.name = "cifar100"
    with pytest.raises(UserError) as caught:
        complete(config)
    assert str(caught.value).startswith(message)
