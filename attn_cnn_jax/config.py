"""The base configuration, what every value may be, and the check that runs before any work.

Files in configs/ call `attention_config` or `resnet_config` and change what differs. `validate` then
refuses unknown keys and impossible values; `complete` fills in what the data set determines.
"""

import difflib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from attn_cnn_jax.data.sources import SPECS
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.encodings import RELATIVE_TERMS
from attn_cnn_jax.models.resnet import BLOCKS


class Field(NamedTuple):
    """One configuration value: where it starts, and what it may be, as a test and in words."""

    default: Any
    allows: Callable[[Any], bool]
    allowed: str


def integer(default: int, low: int, high: int = 2**31 - 1) -> Field:
    def allows(value):
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Field(default, allows, f"an integer from {low} to {high}")


def number(default: float, low: float, high: float = 1e6, *, open_low=False, open_high=True) -> Field:
    def allows(value):
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        # No comparison holds for NaN.
        return (low < value if open_low else low <= value) and (value < high if open_high else value <= high)

    bounds = f"{'above' if open_low else 'from'} {low:g} {'and below' if open_high else 'to'} {high:g}"
    return Field(default, allows, f"a number {bounds}")


def choice(default: Any, *others: Any) -> Field:
    values = (default, *others)
    allows = lambda value: type(value) is type(default) and value in values  # noqa: E731
    return Field(default, allows, "one of " + ", ".join(map(repr, sorted(values))))


def boolean(default: bool) -> Field:
    return Field(default, lambda value: isinstance(value, bool), "True or False")


def text(default: str, allowed: str) -> Field:
    return Field(default, lambda value: isinstance(value, str), allowed)


def integers(default: tuple, low: int, allowed: str, length: int | None = None) -> Field:
    def allows(value):
        if not isinstance(value, tuple | list) or length not in (None, len(value)):
            return False
        return all(integer(0, low).allows(item) for item in value)

    return Field(default, allows, allowed)


MODEL_COMMON = {
    # Taken from the data set in training; the picture size of learned position tables.
    "image_shape": integers((32, 32, 3), 1, "three positive integers (height, width, channels)", length=3),
    "num_classes": integer(10, 2, 100_000),
    "dtype": choice("float32", "bfloat16", "float64"),  # of activations; parameters and softmax: float32
}

ATTENTION = {
    "name": choice("attention"),
    **MODEL_COMMON,
    "encoding": choice(
        "quadratic",
        "quadratic_generalized",
        "learned",
        "relative",
        "absolute_learned",
        "absolute_sinusoidal",
    ),
    "content": boolean(False),  # add q . k / sqrt(D_h) to a quadratic or learned encoding
    "gate": boolean(False),  # or weigh the two softmaxes by a gate a head, as ConViT does
    "init": choice("paper", "grid"),  # of quadratic heads: at random, or on a grid as a kernel's entries
    "locality": number(1.0, 0, open_low=True),  # of init "grid": alpha of every head, in one over squared pixels
    "init_values": choice("random", "identity"),  # of init "grid": or every head moves its share of the channels
    "relative_terms": Field(  # of encoding "relative", eq. 8
        RELATIVE_TERMS,
        lambda value: isinstance(value, tuple | list) and value and set(value) <= set(RELATIVE_TERMS),
        f"some of {', '.join(RELATIVE_TERMS)}",
    ),
    "share_tables": boolean(False),  # one pair of learned position tables for all layers
    "num_layers": integer(6, 1, 1000),
    "num_heads": Field(
        9,
        lambda value: (
            integer(9, 1, 10_000).allows(value)
            or (isinstance(value, tuple | list) and value and all(integer(9, 1, 10_000).allows(n) for n in value))
        ),
        "an integer from 1 to 10000, or one for every layer",
    ),
    "hidden_size": integer(400, 1, 100_000),
    "head_size": integer(0, 0, 100_000),  # 0: the hidden size
    "intermediate_size": integer(512, 1, 100_000),
    "downsample": integer(2, 1, 1000),  # side of the squares of pixels that become one
    "dropout": number(0.1, 0, 1),
    "attention_dropout": number(0.1, 0, 1),
    "attention_dropout_on": choice("probabilities", "factors"),  # one by one, or rows and columns of the product
    "kernel": choice("auto", "dense", "factorised", "blocked"),
}

RESNET = {
    "name": choice("resnet"),
    **MODEL_COMMON,
    "depth": choice(18, *(d for d in BLOCKS if d != 18)),
    "layers": choice("convolution", "attention"),  # attention that begins as a convolution, by Theorem 1
    "sharpness": number(5.0, 0, open_low=True),  # of layers "attention": alpha, in one over squared pixels
}


FIGURES = ("centres", "maps", "training")  # see analysis/figures


def pairs(default: tuple, allowed: str) -> Field:
    def allows(value):
        one = integers((), 1, "", length=2).allows
        return isinstance(value, tuple | list) and all(one(pair) for pair in value)

    return Field(default, allows, allowed)


REST = {
    "seed": integer(0, 0),
    "start": {  # from a finished run instead of from nothing, see training/start.py
        "run": text("", "a run directory, or '' to start from nothing"),
        "kernel": text("", "a .npy file with a kernel (K, K, D, D), or ''"),  # that all layers of init "grid" begin as
        "prune": boolean(False),  # remove degenerate heads
        "reset": boolean(False),  # or start them again: position and value weights
        "heads": pairs((), "pairs (layer, head) counted from 1, or () for those that are degenerate"),
        "freeze_positions": boolean(False),  # of all heads that are not reset
        "freeze_values": boolean(False),
    },
    "dataset": {
        "name": choice("cifar10", *(name for name in SPECS if name != "cifar10")),
        "data_dir": text("", "a folder, or '' for the default of tensorflow-datasets"),
        "num_validation": integer(0, 0),  # pictures held out of the training set
    },
    "augment": {"crop_padding": integer(4, 0, 1000), "flip": boolean(True)},
    "optimizer": {
        "name": choice("sgd", "adam"),
        "learning_rate": number(0.1, 0, open_low=True),
        "momentum": number(0.9, 0, 1),
        "weight_decay": number(1e-4, 0),
        "covariance_penalty": number(0.0, 0),  # times the mean of (condition number of Sigma^-1 - 1)^2
        "schedule": choice("cosine", "step", "constant"),
        "schedule_every": choice("step", "epoch"),  # the authors' release moves the rate once an epoch
        "warmup_fraction": number(0.05, 0, 1),
        "boundaries": integers((80, 150, 250), 1, "a tuple of increasing epochs"),  # of schedule "step"
        "decay": number(0.1, 0, 1, open_low=True, open_high=False),  # factor at each boundary
    },
    "train": {
        "batch_size": integer(100, 1),
        "num_epochs": integer(300, 1),
        "eval_batch_size": integer(500, 1),
        "eval_every_epochs": integer(1, 1),
        "log_every_steps": integer(50, 1),
        "tensorboard": boolean(True),
        "figures_every_epochs": integer(0, 0),  # in TensorBoard; 0: none
        "figures": Field(
            ("centres", "maps"),
            lambda value: isinstance(value, tuple | list) and value and set(value) <= set(FIGURES),
            f"some of {', '.join(FIGURES)}",
        ),
    },
    "checkpoint": {
        "every_epochs": integer(1, 1),
        "keep_last": integer(2, 1),
        "keep_every_epochs": integer(0, 0),  # 0: none but the last ones
    },
}


def attention_config(**model: Any) -> ConfigDict:
    """Base configuration of an attention network: the paper's `quadratic` run.

    Args:
      **model: values of `config.model` that differ.
    """
    return ConfigDict(_defaults(REST | {"model": ATTENTION | _fields(ATTENTION, model)}))


def resnet_config(**model: Any) -> ConfigDict:
    """Base configuration of the ResNet baseline, ResNet-18 unless `depth` says otherwise."""
    return ConfigDict(_defaults(REST | {"model": RESNET | _fields(RESNET, model)}))


def _fields(schema: dict, values: dict) -> dict:
    for key in values:
        if key not in schema:
            raise UserError(unknown_key(f"config.model.{key}", schema))
    return {key: schema[key]._replace(default=value) for key, value in values.items()}


def _defaults(schema: dict) -> dict:
    return {key: _defaults(field) if isinstance(field, dict) else field.default for key, field in schema.items()}


def validate(config: ConfigDict) -> None:
    """Raises UserError, naming key, value and what is allowed, unless the configuration makes sense."""
    if (name := _network(config)) not in ("attention", "resnet"):
        _refuse("model.name", name, "'attention' or 'resnet'")
    _check_fields(config, schema_of(config), "config")
    _check_optimizer(config)
    _check_start(config)
    if config.train.figures_every_epochs and not config.train.tensorboard:
        _refuse("train.figures_every_epochs", config.train.figures_every_epochs, "0 without config.train.tensorboard")
    if config.model.dtype == "float64" and not jax.config.jax_enable_x64:
        _refuse("model.dtype", "float64", "float32 or bfloat16 (float64 needs JAX_ENABLE_X64=1)")
    if config.model.name == "attention":
        _check_attention(config.model)


def allowed_values(config: ConfigDict, path: str) -> str:
    """What a key such as `config.train.batch_size` may be, in words."""
    field = schema_of(config)
    for part in path.split(".")[1:]:
        field = field.get(part, {}) if isinstance(field, dict) else field
    return field.allowed if isinstance(field, Field) else "what the config file's type says"


def schema_of(config: ConfigDict) -> dict:
    """The fields of a configuration: of its kind of network, and the rest."""
    return REST | {"model": RESNET if _network(config) == "resnet" else ATTENTION}


def _network(config: ConfigDict) -> Any:
    model = config.get("model")
    return model.get("name", "attention") if isinstance(model, ConfigDict) else "attention"


def _check_fields(config: Any, schema: dict, path: str) -> None:
    if not isinstance(config, ConfigDict):
        raise UserError(f"{path}={config!r}: expected the keys {', '.join(schema)}")
    for key in config:
        if key not in schema:
            raise UserError(unknown_key(f"{path}.{key}", schema))
    for key, field in schema.items():
        if key not in config:
            raise UserError(f"{path}.{key} is missing: start from attention_config() or resnet_config()")
        if isinstance(field, dict):
            _check_fields(config[key], field, f"{path}.{key}")
        elif not field.allows(config[key]):
            raise UserError(f"{path}.{key}={config[key]!r}: allowed is {field.allowed}")


def unknown_key(path: str, known: Any) -> str:
    """The line that refuses an unknown key, with what was probably meant."""
    parent, _, key = path.rpartition(".")
    close = difflib.get_close_matches(key, list(known), n=1)
    meant = f"did you mean {parent}.{close[0]}?" if close else f"allowed are {', '.join(sorted(known))}"
    return f"{path} is not a configuration key: {meant}"


def _refuse(key: str, value: Any, allowed: str) -> None:
    raise UserError(f"config.{key}={value!r}: allowed is {allowed}")


def _check_optimizer(config: ConfigDict) -> None:
    boundaries = tuple(config.optimizer.boundaries)
    if list(boundaries) != sorted(set(boundaries)):
        _refuse("optimizer.boundaries", boundaries, "a tuple of increasing epochs")


QUADRATIC = ("quadratic", "quadratic_generalized")


def _check_start(config: ConfigDict) -> None:
    start, encoding = config.start, config.model.get("encoding")
    changes = [key for key in ("prune", "reset") if start[key]]
    if start.kernel and (start.run or config.model.get("init") != "grid"):
        _refuse("start.kernel", start.kernel, "'' unless config.model.init='grid', and beside config.start.run")
    if changes and not start.run:
        _refuse(f"start.{changes[0]}", True, "False without a run to start from, config.start.run")
    if len(changes) == 2:
        _refuse("start.reset", True, "False beside config.start.prune: a head is removed or reset")
    if start.heads and not changes:
        _refuse("start.heads", start.heads, "() without config.start.prune or config.start.reset")
    if changes and not start.heads and encoding not in QUADRATIC:
        _refuse("start.heads", (), f"pairs (layer, head): encoding {encoding!r} has no spread to be degenerate by")
    if start.freeze_positions and encoding not in (*QUADRATIC, "learned"):
        _refuse("start.freeze_positions", True, f"False for encoding {encoding!r}")
    if start.freeze_values and config.model.name != "attention":
        _refuse("start.freeze_values", True, f"False for a {config.model.name}")
    penalty = config.optimizer.covariance_penalty
    if penalty and encoding != "quadratic_generalized":
        _refuse("optimizer.covariance_penalty", penalty, "0 unless config.model.encoding='quadratic_generalized'")


def with_defaults(config: ConfigDict) -> ConfigDict:
    """A copy in which keys that a run of an earlier version does not have are at their defaults."""

    def fill(values: dict, schema: dict) -> dict:
        missing = {key: _defaults({key: field})[key] for key, field in schema.items() if key not in values}
        return missing | {
            key: fill(value, schema[key]) if isinstance(value, dict) and isinstance(schema.get(key), dict) else value
            for key, value in values.items()
        }

    return ConfigDict(fill(config.to_dict(), schema_of(config)))


def _check_attention(model: ConfigDict) -> None:
    height, width, _ = model.image_shape
    if height % model.downsample or width % model.downsample:
        _refuse("model.downsample", model.downsample, f"a divisor of both sides of the {height}x{width} pictures")
    if isinstance(model.num_heads, tuple | list) and len(model.num_heads) != model.num_layers:
        _refuse("model.num_heads", tuple(model.num_heads), f"one number, or {model.num_layers} (one a layer)")
    own_content = model.encoding in ("relative", "absolute_learned", "absolute_sinusoidal")
    if model.content and own_content:
        hint = "; its terms are config.model.relative_terms" if model.encoding == "relative" else ""
        _refuse(
            "model.content",
            True,
            f"False for encoding {model.encoding!r}, which has content of its own{hint}",
        )
    if model.gate and not model.content:
        _refuse("model.gate", True, "False without content, config.model.content=True")
    if model.init == "grid":
        if model.encoding not in QUADRATIC:
            _refuse("model.init", "grid", f"'paper' for encoding {model.encoding!r}, which has no centres")
        counts = [model.num_heads] if isinstance(model.num_heads, int) else model.num_heads
        if any(math.isqrt(count) ** 2 != count for count in counts):
            _refuse("model.num_heads", model.num_heads, "a square number for config.model.init='grid'")
    elif model.init_values != "random":
        _refuse("model.init_values", model.init_values, "'random' unless config.model.init='grid'")
    if model.share_tables and model.encoding not in ("learned", "relative"):
        _refuse("model.share_tables", True, f"False for encoding {model.encoding!r}, which has no tables")
    if model.encoding == "absolute_sinusoidal" and model.hidden_size % 4:
        _refuse("model.hidden_size", model.hidden_size, "a multiple of 4 for sinusoidal positions")
    factorises = model.encoding in ("quadratic", "learned") and not model.content
    if model.attention_dropout_on == "factors" and not factorises:
        _refuse(
            "model.attention_dropout_on", "factors", "'probabilities': only quadratic and learned positions factorise"
        )
    if model.kernel == "factorised":
        if not factorises:
            _refuse(
                "model.kernel",
                "factorised",
                "'auto', 'dense' or 'blocked': only quadratic and learned positions factorise",
            )
        if model.attention_dropout > 0 and model.attention_dropout_on == "probabilities":
            _refuse(
                "model.kernel",
                "factorised",
                "'auto', 'dense', 'blocked', or set attention_dropout=0.0 or attention_dropout_on='factors'",
            )


def complete(config: ConfigDict) -> ConfigDict:
    """A copy with the picture size and the number of classes of the data set, checked.

    Both may be left at their defaults; a value of one's own that contradicts the data set is refused.
    """
    validate(config)
    spec = SPECS[config.dataset.name]
    config = config.copy_and_resolve_references()
    for key, value in (("image_shape", spec.image_shape), ("num_classes", spec.num_classes)):
        given = config.model[key]
        given = tuple(given) if isinstance(given, tuple | list) else given
        if given not in (MODEL_COMMON[key].default, value):
            _refuse(f"model.{key}", given, f"{value!r} for {spec.name}; leave it out")
        config.model[key] = value
    validate(config)
    return config
