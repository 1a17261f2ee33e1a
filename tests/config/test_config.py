"""Nothing impossible gets past `validate`, and the message says what to write instead; what comes from the data."""

import functools
import math

import jax
import pytest
from ml_collections import ConfigDict

from attn_cnn_jax.config import attention_config, complete, resnet_config, spec_of, validate, with_defaults
from attn_cnn_jax.config.base import flatten, schema_of
from attn_cnn_jax.data.sets import SPECS, Spec
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.options import OURS
from attn_cnn_jax.runs.directory import from_json, to_json


def changed(base, changes):
    """A base configuration with values replaced by others of whatever type; keys are new if need be."""
    config = base().to_dict()
    for key, value in changes.items():
        *groups, last = key.split(".")
        (config[groups[0]] if groups else config)[last] = value
    return ConfigDict(config)


def refusal(config):
    """The message that `validate` refuses with: a line or two."""
    with pytest.raises(UserError) as caught:
        validate(config)
    message = str(caught.value)
    assert 1 <= len(message.splitlines()) <= 2
    return message


WRONG = {
    "none": lambda default: None,
    "other type": lambda default: 3.5 if isinstance(default, str | bool | int | tuple) else "plenty",
    "nan": lambda default: math.nan,
    "infinity": lambda default: math.inf,
    "minus infinity": lambda default: -math.inf,
    "negative": lambda default: -1,
    "one entry is negative": lambda default: (-1,),
    "empty entry": lambda default: ("",),
    "a list": lambda default: [[1]],
    "a list in a tuple": lambda default: ([1],),
    "huge": lambda default: 10**400 if isinstance(default, int | float) else (10**400,),
    "yes for a number": lambda default: 0j if isinstance(default, bool) else True,
    "zeros": lambda default: (0,) * max(1, len(default)) if isinstance(default, tuple) else (0,),
}


def test_the_encodings_that_are_known_without_jax_are_those_that_are_registered():
    ours = {name: kind.options for name, kind in REGISTRY.items() if kind.__module__.startswith("attn_cnn_jax.")}
    assert ours == OURS


def test_a_network_of_attention_has_at_most_64_keys():
    assert len(flatten(attention_config())) <= 64


def test_every_key_refuses_what_makes_no_sense():
    """No key takes any of these, but for a mean of zero; the message names key, value and what is allowed."""
    fields = [  # of the encodings that are registered now
        (base, key, field)
        for base in (attention_config, resnet_config)
        for key, field in flatten(schema_of(base())).items()
        if base is attention_config or key.startswith("model.")
    ]
    for base, key, field in fields:
        assert field.allows(field.default)
        taken = [wrong for wrong, value_of in WRONG.items() if field.allows(value_of(field.default))]
        # A channel may be black; that a range is one is said with its data.
        assert taken == (["zeros"] if key in ("dataset.mean", "dataset.range") else [])
        allowed = "'attention' or 'resnet'" if key == "model.name" else field.allowed
        assert refusal(changed(base, {key: -1})) == f"config.{key}=-1: allowed is {allowed}"


def test_ends_of_what_is_allowed():
    for key, allowed, refused in (
        ("model.dropout", 0.999, 1.0),
        ("model.num_classes", 2, 1),
        ("model.num_heads", (9, 8, 7, 6, 5, 4), (9, 8, 7, 6, 5, 0)),
        ("model.image_shape", [28, 28, 1], [28, 28]),
        ("augment.crop_fraction", 1, 1.01),
        ("optimizer.schedule", "constant", "cosin"),
        ("train.batch_size", 2**31 - 1, 2**31),
        ("dataset.name", "digits", "mnist"),
        ("dataset.image_size", 0, (0, 3)),
        ("start.heads", (), (1, 2)),
    ):
        validate(changed(attention_config, {key: allowed}))
        assert refusal(changed(attention_config, {key: refused})).startswith(f"config.{key}=")


def test_unknown_keys_are_refused_with_what_was_probably_meant():
    for key, said in (
        ("model.num_heds", "did you mean config.model.num_heads?"),
        ("trian", "did you mean config.train?"),
        ("augment.xyz", "allowed are border, crop_fraction, crop_padding, flip, operations"),
        ("model.depth", "did you mean config.model.num_layers?"),
    ):
        line = f"config.{key} is not a configuration key: {said}"
        assert refusal(changed(attention_config, {key: 1})).startswith(line)
    renamed = refusal(changed(attention_config, {"model.name": "resnet"}))
    assert renamed.endswith("config.model.name is of other networks: choose a --config of them, quadratic or resnet18")


def test_missing_keys_are_named_and_filled_in_for_a_saved_run():
    for base in (attention_config, resnet_config):
        whole = base().to_dict()
        for group, values in whole.items():
            if not isinstance(values, dict):
                continue
            for key in values.keys() - {"name"}:
                config = ConfigDict(whole | {group: {name: values[name] for name in values if name != key}})
                assert f"config.{group}.{key} is missing" in refusal(config)
            kept = {"name": values["name"]} if "name" in values else {}
            assert with_defaults(ConfigDict(whole | {group: kept})).to_dict() == whole
    said = refusal(ConfigDict(whole | {"train": 3}))
    assert said.startswith("config.train is no single value: set one of its keys, batch_size, ")


FROM = {"start.run": "x"}
IMPOSSIBLE = [  # what a layer alone knows it refuses itself, see tests/models
    ({"model.downsample": 3}, "model.downsample=3: allowed is a divisor of both sides of the 32x32 images"),
    ({"model.image_shape": (32, 31, 3)}, "model.downsample=2: allowed is a divisor of both sides of the 32x31"),
    (
        {"model.window": 2},
        "model.window=2: allowed is 0, which means a side of config.model.downsample, or another one",
    ),
    ({"model.num_heads": (9, 9)}, "model.num_heads=(9, 9): allowed is one number, or 6 (one per layer)"),
    ({"model.init": "grid", "model.num_heads": 5}, "model.num_heads=5: allowed is a square number"),
    ({"model.init": "identity", "model.encoding": "learned"}, "model.init='identity': allowed is 'paper' or"),
    ({"model.implementation": "factorised"}, "model.implementation='factorised': allowed is "),
    ({"model.dtype": "float64"}, "model.dtype='float64': allowed is float32 or bfloat16"),
    ({"model.name": "perceptron"}, "model.name='perceptron': allowed is 'attention' or 'resnet'"),
    ({"start.prune": True}, "start.prune=True: allowed is False without a run"),
    ({"start.freeze": "encoder"}, "start.freeze='encoder': allowed is '' without a run"),
    (FROM | {"start.prune": True, "start.reset": True}, "start.reset=True"),
    (FROM | {"start.heads": ((1, 1),)}, "start.heads=((1, 1),): allowed is () without"),
    (FROM | {"start.prune": True, "start.heads": ((0, 1),)}, "start.heads=((0, 1),): allowed is pairs"),
    (FROM | {"start.prune": True, "model.content": True}, "start.heads=(): allowed is pairs (layer, head)"),
    (FROM | {"start.freeze": "positions", "model.encoding": "relative"}, "start.freeze='positions'"),
    (
        {"augment.crop_fraction": 0.5, "model.encoding": "absolute_learned"},
        "augment.crop_fraction=0.5: allowed is 1.0 with a learned vector for every pixel",
    ),
    (
        {"augment.border": "mirrored", "augment.crop_padding": 0},
        "augment.border='mirrored': allowed is 'black' with config.augment.crop_padding=0",
    ),
    ({"optimizer.covariance_penalty": 1.0}, "optimizer.covariance_penalty=1.0: allowed is 0 unless"),
    ({"dataset.path": "x"}, "dataset.path='x': allowed is '' for cifar10"),
    ({"dataset.image_size": 3}, "dataset.image_size=3: allowed is 0 for cifar10"),
]
POSSIBLE = [
    {"model.window": 1},
    {"model.window": 3},
    {"model.downsample": 31, "model.image_shape": (62, 31, 3)},
    {"model.num_heads": (9, 9), "model.num_layers": 2},
    {"model.init": "identity", "model.num_heads": 16},
    {"model.init": "mimetic", "model.encoding": "rope"},
    {"model.attention_dropout_on": "factors", "model.implementation": "factorised"},
    FROM | {"start.prune": True, "start.heads": ((1, 1),), "model.content": True},
]


def test_impossible_combinations_are_refused_and_their_neighbours_allowed():
    for changes, message in IMPOSSIBLE:
        assert refusal(changed(attention_config, changes)).startswith(f"config.{message}")
    for changes in POSSIBLE:
        validate(changed(attention_config, changes))
    with jax.enable_x64(True):
        validate(attention_config(dtype="float64"))


def test_a_run_takes_classes_size_and_statistics_from_its_data_set():
    config = attention_config()
    config.dataset.name = "cifar100"
    completed = complete(config)
    assert (completed.model.num_classes, config.model.num_classes) == (100, 10)  # a copy was completed
    assert completed.dataset.mean == SPECS["cifar100"].mean
    kept, known = spec_of(with_defaults(from_json(to_json(completed)))), SPECS["cifar100"]
    for key in ("image_shape", "num_classes", "mean", "std", "class_names"):
        assert getattr(kept, key) == getattr(known, key)
    for key, value, allowed in (("num_classes", 11, "100"), ("image_shape", (16, 16, 3), r"\(32, 32, 3\)")):
        contradicting = attention_config(**{key: value})
        contradicting.dataset.name = "cifar100"
        with pytest.raises(UserError, match=f"config.model.{key}=.*: allowed is {allowed} for cifar100; leave"):
            complete(contradicting)
    config.dataset.name = "digits"
    config.model.downsample = 16  # divides 32, not 8
    with pytest.raises(UserError, match="8x8 images"):
        complete(config)


def test_the_users_own_data_is_asked_for_and_then_checked():
    config = attention_config(downsample=3)
    config.dataset.name = "folder"
    with pytest.raises(UserError, match=r"dataset\.path='': allowed is a folder of class folders"):
        complete(config)
    config.dataset.update({"path": "own", "image_size": 48, "mean": (0.5,) * 3})
    complete(config)
    spec = functools.partial(Spec, "folder", num_classes=2, mean=(0.4,) * 3, std=(0.2,) * 3, class_names=("a", "b"))
    completed = complete(config, spec(image_shape=(48, 48, 3)))
    assert (completed.model.image_shape, completed.dataset.mean) == ((48, 48, 3), (0.5,) * 3)
    completed.dataset.path = ""
    validate(completed)  # a run's: its data may be gone
    with pytest.raises(UserError, match="downsample=3: allowed is a divisor of both sides of the 32x48 images"):
        complete(config, spec(image_shape=(32, 48, 3)))
    config.dataset.num_validation = 500
    with pytest.raises(UserError, match="allowed is 0 for own, which has a validation split of its own"):
        complete(config, spec(image_shape=(48, 48, 3), has_validation=True))


def test_batch_size_and_epochs_fit_the_number_of_images_unless_they_are_set():
    """A hundred images are a dozen steps per epoch, 600 in all; many are batches of 50, for 12 epochs."""
    config = resnet_config()
    config.dataset.update({"name": "npz", "path": "x", "num_validation": 4})
    spec = Spec("npz", (32, 32, 3), 2, (0.5,) * 3, (0.2,) * 3, ("a", "b"))
    for count, set_, fits in (
        (100, (0, 0), (8, 50)),
        (20, (0, 0), (8, 100)),
        (50_004, (0, 0), (50, 12)),
        (9, (3, 0), (3, 100)),
        (100, (0, 7), (8, 7)),
    ):
        config.train.batch_size, config.train.num_epochs = set_
        train = complete(config, spec, count).train
        assert (train.batch_size, train.num_epochs) == fits
    assert complete(config).train.batch_size == 0  # before the data is known
    config = attention_config()
    config.train.batch_size = 0
    assert complete(config).train.batch_size == 50
