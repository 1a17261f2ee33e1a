"""What every value of a configuration may be: its default, a test, and what is allowed in words."""

import difflib
from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from attn_cnn_jax.data.sources import SPECS
from attn_cnn_jax.models.content_encodings import RELATIVE_TERMS
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
        "num_seeds": integer(1, 1, 10_000),  # networks trained at once: seed, seed + 1, ...
        "same_data_order": boolean(False),  # the first seed's for all of them; else each as in a run of its own
        "seeds_at_once": integer(0, 0, 10_000),  # under one vmap; 0: all on an accelerator, one on a CPU
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


def allowed_values(config: ConfigDict, path: str) -> str:
    """What a key such as `config.train.batch_size` may be, in words."""
    field = schema_of(config)
    for part in path.split(".")[1:]:
        field = field.get(part, {}) if isinstance(field, dict) else field
    return field.allowed if isinstance(field, Field) else "what the config file's type says"


def schema_of(config: ConfigDict) -> dict:
    """The fields of a configuration: of its kind of network, and the rest."""
    return REST | {"model": RESNET if network_kind(config) == "resnet" else ATTENTION}


def network_kind(config: ConfigDict) -> Any:
    model = config.get("model")
    return model.get("name", "attention") if isinstance(model, ConfigDict) else "attention"


def unknown_key(path: str, known: Any) -> str:
    """The line that refuses an unknown key, with what was probably meant."""
    parent, _, key = path.rpartition(".")
    close = difflib.get_close_matches(key, list(known), n=1)
    meant = f"did you mean {parent}.{close[0]}?" if close else f"allowed are {', '.join(sorted(known))}"
    return f"{path} is not a configuration key: {meant}"


def defaults(schema: dict) -> dict:
    return {key: defaults(field) if isinstance(field, dict) else field.default for key, field in schema.items()}
