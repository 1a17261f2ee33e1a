"""Nothing impossible gets past `validate`, and the message says what to write instead."""

import math

import jax
import pytest
from ml_collections import ConfigDict

from attn_cnn_jax.config import attention_config, resnet_config, validate
from attn_cnn_jax.config.base import schema_of
from attn_cnn_jax.errors import UserError

BASES = {"attention": attention_config, "resnet": resnet_config}


def leaves(schema, path=()):
    """Every `(path, field)` of a schema of nested dictionaries."""
    for key, field in schema.items():
        if isinstance(field, dict):
            yield from leaves(field, (*path, key))
        else:
            yield (*path, key), field


FIELDS = [
    pytest.param(base, path, field, id=f"{name}-{'.'.join(path)}")
    for name, base in BASES.items()
    for path, field in leaves(schema_of(base()))
    if name == "attention" or path[0] == "model"
]


def changed(base, path, value):
    """A base configuration with one value replaced, of whatever type."""
    config = base().to_dict()
    node = config
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return ConfigDict(config)


def refusal(config):
    """The message that `validate` refuses with: a line or two."""
    with pytest.raises(UserError) as caught:
        validate(config)
    message = str(caught.value)
    assert 1 <= len(message.splitlines()) <= 2
    return message


@pytest.mark.parametrize(("base", "path", "field"), FIELDS)
def test_every_default_is_allowed(base, path, field):
    assert field.allows(field.default)


def wrong_type(default):
    """A value that no field with this default may have."""
    return 3.5 if isinstance(default, str | bool | int | tuple) else "plenty"


WRONG = {
    "none": lambda default: None,
    "other type": wrong_type,
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


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("base", "path", "field"), FIELDS)
def test_every_key_refuses_what_makes_no_sense(base, path, field, wrong):
    """No key takes any of these, but for a mean of zero; the message names key, value and what is allowed."""
    value = WRONG[wrong](field.default)
    if (path, wrong) == (("dataset", "mean"), "zeros"):  # a channel may be black
        validate(changed(base, path, value))
        return
    message = refusal(changed(base, path, value))
    if path == ("model", "name"):  # an unknown network is held against the attention networks' keys
        assert message.startswith("config.model.")
    else:
        assert message == f"config.{'.'.join(path)}={value!r}: allowed is {field.allowed}"


MAY_BE_ZERO = {
    "seed",
    "model.head_size",
    "model.position_size",
    "model.centre_std",
    "model.spread_std",
    "model.dropout",
    "model.attention_dropout",
    "dataset.image_size",
    "dataset.split_seed",
    "dataset.num_validation",
    "dataset.workers",
    "augment.crop_padding",
    "augment.operations",
    "augment.half_size_until",
    "optimizer.momentum",
    "optimizer.weight_decay",
    "train.label_smoothing",
    "optimizer.average_decay",
    "optimizer.max_grad_norm",
    "optimizer.warmup_fraction",
    "optimizer.covariance_penalty",
    "train.figures_every_epochs",
    "checkpoint.keep_every_epochs",
}
NUMBERS = [case for case in FIELDS if type(case.values[2].default) in (int, float)]


@pytest.mark.parametrize(("base", "path", "field"), NUMBERS)
def test_zero_is_allowed_where_it_means_something_and_nowhere_else(base, path, field):
    config, key = changed(base, path, 0), ".".join(path)
    if key in MAY_BE_ZERO:
        validate(config)
    else:
        assert refusal(config) == f"config.{key}=0: allowed is {field.allowed}"


@pytest.mark.parametrize(
    ("key", "allowed", "refused"),
    [
        ("model.dropout", 0.999, 1.0),
        ("model.attention_dropout", 0.999, 1.0),
        ("model.num_classes", 2, 1),
        ("model.num_heads", (9, 8, 7, 6, 5, 4), (9, 8, 7, 6, 5, 0)),
        ("model.image_shape", [28, 28, 1], [28, 28]),
        ("model.relative_terms", ("content_content",), ()),
        ("optimizer.momentum", 0.999, 1),
        ("optimizer.warmup_fraction", 0.999, 1.0),
        ("optimizer.decay", 1.0, 1.001),
        ("optimizer.boundaries", (1, 2), (2, 1)),
        ("optimizer.boundaries", (), (2, 2)),
        ("optimizer.schedule", "constant", "cosin"),
        ("train.batch_size", 2**31 - 1, 2**31),
        ("dataset.name", "digits", "mnist"),
    ],
)
def test_ends_of_what_is_allowed(key, allowed, refused):
    path = tuple(key.split("."))
    validate(changed(attention_config, path, allowed))
    assert refusal(changed(attention_config, path, refused)).startswith(f"config.{key}=")


@pytest.mark.parametrize(
    ("model", "share", "message"),
    [
        ({"downsample": 4}, 0.3, None),
        ({"downsample": 32}, 0.3, "0 for 32x32 pictures: both sides must be divisible by 64"),
        ({"encoding": "absolute_learned"}, 0.3, "0 for encoding 'absolute_learned', whose positions are absolute"),
        ({"encoding": "learned"}, 0.9, None),
    ],
)
def test_pictures_of_half_the_size_are_refused_where_the_network_cannot_see_them(model, share, message):
    config = attention_config(**model)
    config.augment.half_size_until = share
    if message is None:
        validate(config)
    else:
        assert refusal(config) == f"config.augment.half_size_until={share}: allowed is {message}"


def test_no_term_of_the_relative_form_is_named_twice():
    message = refusal(attention_config(encoding="relative", relative_terms=("position_position",) * 2))
    assert message.startswith(
        "config.model.relative_terms=('position_position', 'position_position'): allowed is some of"
    )


def test_only_an_embedding_of_pictures_whitens():
    config = changed(attention_config, ("start", "whiten"), True)
    validate(config)
    config.model.stem = "resnet"
    said = "config.start.whiten=True: allowed is False for a ResNet and for a network with a stem"
    assert refusal(config) == said
    assert refusal(changed(resnet_config, ("start", "whiten"), True)) == said


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (
            ("model", "num_heds"),
            "config.model.num_heds is not a configuration key: did you mean config.model.num_heads?",
        ),
        (("trian",), "config.trian is not a configuration key: did you mean config.train?"),
        (
            ("train", "batchsize"),
            "config.train.batchsize is not a configuration key: did you mean config.train.batch_size?",
        ),
        (("augment", "xyz"), "config.augment.xyz is not a configuration key: allowed are alternate, crop_padding"),
        (("model", "depth"), "config.model.depth is not a configuration key: "),
    ],
)
def test_unknown_keys_are_refused_with_what_was_probably_meant(path, line):
    assert refusal(changed(attention_config, path, 1)).startswith(line)


def test_a_network_is_described_by_its_own_keys():
    with pytest.raises(UserError, match=r"config\.model\.num_heds is not .* did you mean config\.model\.num_heads\?"):
        attention_config(num_heds=3)
    with pytest.raises(UserError, match=r"config\.model\.num_heads is not a configuration key"):
        resnet_config(num_heads=3)


@pytest.mark.parametrize(("base", "path", "field"), FIELDS)
def test_a_missing_key_is_named(base, path, field):
    config = base()
    node = config
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    assert f"config.{'.'.join(path)}" in refusal(config) or path == ("model", "name")


def test_a_section_that_is_no_section_is_refused():
    config = attention_config().to_dict()
    said = refusal(ConfigDict(config | {"train": 3}))
    assert said.startswith("config.train=3: expected the keys ")
    assert "batch_size, " in said


FACTORISED = {"implementation": "factorised", "attention_dropout": 0.0}
FACTORS = {"attention_dropout_on": "factors"}
IMPOSSIBLE = [
    ({"downsample": 3}, "downsample=3: allowed is a divisor of both sides of the 32x32 pictures"),
    ({"image_shape": (32, 31, 3)}, "downsample=2: allowed is a divisor of both sides of the 32x31 pictures"),
    ({"num_heads": (9, 9)}, "num_heads=(9, 9): allowed is one number, or 6 (one per layer)"),
    ({"encoding": "relative", "content": True}, "content=True: allowed is False for encoding 'relative'"),
    ({"encoding": "absolute_learned", "content": True}, "content=True: allowed is False for encoding 'absolute_learn"),
    ({"encoding": "absolute_sinusoidal", "content": True}, "content=True: allowed is False for encoding 'absolute_s"),
    ({"share_tables": True}, "share_tables=True: allowed is False for encoding 'quadratic', which has no tables"),
    ({"encoding": "absolute_sinusoidal", "hidden_size": 402}, "hidden_size=402: allowed is a multiple of 4"),
    (
        {"implementation": "factorised"},
        "implementation='factorised': allowed is 'auto', 'dense', 'blocked', or set attention_dropout=0",
    ),
    (
        FACTORISED | {"content": True},
        "implementation='factorised': allowed is 'auto', 'dense' or 'blocked': only learned and quadratic",
    ),
    (
        FACTORISED | {"encoding": "quadratic_generalized"},
        "implementation='factorised': allowed is 'auto', 'dense' or 'bl",
    ),
    (
        FACTORS | {"content": True},
        "attention_dropout_on='factors': allowed is 'probabilities': only learned and quadratic",
    ),
    (
        FACTORS | {"encoding": "relative"},
        "attention_dropout_on='factors': allowed is 'probabilities': only learned and quadratic",
    ),
    ({"dtype": "float64"}, "dtype='float64': allowed is float32 or bfloat16"),
]
POSSIBLE = [
    {"downsample": 4},
    {"downsample": 31, "image_shape": (62, 31, 3)},
    {"num_heads": (9, 9), "num_layers": 2},
    {"encoding": "learned", "content": True},
    {"encoding": "quadratic_generalized", "content": True},
    {"encoding": "learned", "share_tables": True},
    {"encoding": "relative", "share_tables": True},
    {"encoding": "absolute_sinusoidal", "hidden_size": 404},
    {"encoding": "quadratic", "hidden_size": 402},
    FACTORISED,
    FACTORISED | {"encoding": "learned"},
    FACTORS | {"implementation": "factorised"},
    {"encoding": "relative", "implementation": "blocked"},
    {"dtype": "bfloat16"},
]


@pytest.mark.parametrize(("model", "message"), IMPOSSIBLE, ids=[line.split(":")[0] for _, line in IMPOSSIBLE])
def test_impossible_combinations_are_refused(model, message):
    assert refusal(attention_config(**model)).startswith(f"config.model.{message}")


@pytest.mark.parametrize("model", POSSIBLE, ids=lambda model: "-".join(map(str, model.values())))
def test_their_neighbours_are_allowed(model):
    validate(attention_config(**model))


def test_float64_is_allowed_where_jax_has_it():
    with jax.enable_x64(True):
        validate(attention_config(dtype="float64"))


def test_an_unknown_kind_of_network_is_answered_with_both():
    config = attention_config()
    config.model.name = "perceptron"
    with pytest.raises(UserError, match=r"config\.model\.name='perceptron': allowed is 'attention' or 'resnet'"):
        validate(config)
