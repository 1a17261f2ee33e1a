"""The base configuration: every value of the paper's experiment, and what each may be, on one page.

Files in configs/ call `attention_config` or `resnet_config` and change what differs.
"""

import difflib
import math
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict, FieldReference

from attn_cnn_jax.data.sets import OWN, SPECS, is_own
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.options import BLOCKS, IMPLEMENTATIONS, WIDTH, Option, encodings


def integer(default: int, low: int, high: int = 2**31 - 1) -> Option:
    return Option(
        default, lambda value: type(value) is int and low <= value <= high, f"an integer from {low} to {high}"
    )


def number(default: float, low: float, high: float = 1e6, *, open_low=False) -> Option:
    def allows(value):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (low < value if open_low else low <= value) and value < high  # none holds for NaN

    return Option(default, allows, f"a number {'above' if open_low else 'from'} {low:g} and below {high:g}")


def share(default: float) -> Option:
    return number(default, 0, math.nextafter(1, 2), open_low=True)._replace(allowed="a number above 0, at most 1")


def choice(default: Any, *others: Any) -> Option:
    values = sorted((default, *others))
    allowed = "one of " + ", ".join(map(repr, values))
    return Option(default, lambda value: type(value) is type(default) and value in values, allowed)


def text(default: str, allowed: str, known: Callable[[str], bool] = lambda value: True) -> Option:
    return Option(default, lambda value: isinstance(value, str) and known(value), allowed)


def several(one: Option, allowed: str, *, default: tuple = (), length: int | None = None) -> Option:
    """A tuple of values that `one` allows."""

    def allows(value):
        return isinstance(value, tuple | list) and length in (None, len(value)) and all(map(one.allows, value))

    return Option(default, allows, allowed)


def either(one: Option, many: Option, allowed: str) -> Option:
    """A value or a tuple of values."""
    return Option(one.default, lambda value: one.allows(value) or many.allows(value), allowed, any_type=True)


COUNT = integer(1, 1)
HEADS = integer(9, 1, 10_000)
DROPOUT = number(0.1, 0, 0.9999)  # rates are multiples of 2^-16 below 1

MODEL_COMMON = {
    # Taken from the data set in training; the image size of learned position tables.
    "image_shape": several(COUNT, "three positive integers (height, width, channels)", default=(32, 32, 3), length=3),
    "num_classes": integer(10, 2, 100_000),  # taken from the data set in training
    "dtype": choice("float32", "bfloat16", "float64"),  # of activations; parameters and softmax: float32
}

ATTENTION = {
    "name": choice("attention"),
    **MODEL_COMMON,
    "encoding": text("quadratic", "the name of a registered encoding", lambda name: name in encodings()),
    "content": choice(False, True),  # add q . k / sqrt(D_h) to a quadratic or learned encoding
    "gate": choice(False, True),  # or weigh the two softmaxes by a gate per head, as ConViT does
    "block": choice("post_norm", "pre_norm"),  # of attention and two linear maps: BERT's, as in the paper, or ViT's
    # As the paper; quadratic heads on a grid as a kernel's entries, or there with every head moving its channels, or
    # there with nearly all attention on one pixel; value and content maps as trained ones look.
    "init": choice("paper", "grid", "identity", "impulse", "mimetic", "mimetic_plus"),
    "locality": number(1.0, 0, open_low=True),  # of init "grid" and "identity": alpha, in one over squared pixels
    "num_layers": integer(6, 1, 1000),  # attention layers, each followed by two linear maps
    "num_heads": either(HEADS, several(HEADS, ""), "an integer from 1 to 10000, or one for every layer"),  # N_h
    "hidden_size": integer(400, 1, 100_000),  # channels of a pixel, D
    "head_size": integer(0, 0, 100_000),  # 0: the hidden size
    "intermediate_size": integer(512, 1, 100_000),  # channels between the two linear maps
    "downsample": integer(2, 1, 1000),  # side of the squares of pixels that become one
    "window": integer(0, 0, 1000),  # side of the window of pixels that is read around each square; 0: the square itself
    "dropout": DROPOUT,  # rate, after attention and after the linear maps
    "attention_dropout": DROPOUT,  # rate, of attention probabilities
    "attention_dropout_on": choice("probabilities", "factors"),  # one by one, or rows and columns of the product
    "implementation": choice(*IMPLEMENTATIONS),  # of attention; "auto": the cheapest that fits
}

RESNET = {
    "name": choice("resnet"),
    **MODEL_COMMON,
    "depth": choice(18, *(d for d in BLOCKS if d != 18)),  # ResNet-18 and so on; from 50 on of bottlenecks
    "width": integer(WIDTH, 1, 10_000),  # channels of the first stage; they double from stage to stage
    "layers": choice("convolution", "attention"),  # attention that begins as a convolution, by Theorem 1
    "sharpness": number(5.0, 0, open_low=True),  # of layers "attention": alpha, in one over squared pixels
}

PAIR = several(COUNT, "", length=2)
DATA_SETS = f"one of {', '.join(map(repr, sorted([*SPECS, *OWN])))} or 'tfds:NAME'"

REST = {
    "seed": integer(0, 0),  # of initial parameters, the order of images, augmentation and dropout
    "start": {  # from a finished run instead of from nothing, see training/initialise.py
        "run": text("", "a run directory, exported weights, 'pretrained:NAME', or '' to start from nothing"),
        "prune": choice(False, True),  # remove degenerate heads
        "reset": choice(False, True),  # or start them again: position and value weights
        "heads": several(PAIR, "pairs (layer, head) counted from 1, or () for those that are degenerate"),
        "freeze": text(
            "",
            "'encoder' (all but the classifier), 'positions' or 'values' (of heads that are not reset), patterns of "
            "parameter names such as 'embedding.*', several with commas, or ''",
        ),
    },
    "dataset": {
        "name": text("cifar10", DATA_SETS, lambda name: name in SPECS or is_own(name)),
        "path": text("", "of name 'folder' a folder of class folders, of 'npz' a file; else ''"),
        "image_size": either(
            integer(0, 0, 10_000),
            PAIR,
            "of your own images: a side in pixels, (height, width), or 0 for the size they have",
        ),
        "test_fraction": number(0.2, 0, 1, open_low=True),  # of each class, where there is no test split
        "skip_unreadable": choice(False, True),  # leave broken image files out, and name them
        "range": several(
            integer(0, 0, 65535),
            "two integers from 0 to 65535, (low, high): the values in your 16-bit grey files that become 0 and 255",
            default=(0, 65535),
            length=2,
        ),
        "data_dir": text("", "a folder, or '' for the default of tensorflow-datasets"),
        "feed": choice("auto", "device", "stream"),  # images all on the devices, or read from the disk in training
        "num_validation": integer(0, 0),  # images held out of the training set
        # Taken from the data set in training, and kept with the run.
        "mean": several(number(0.0, 0), "one number from 0 per channel, or () for that of the data set"),
        "std": several(number(1.0, 1e-9), "one number from 1e-09 per channel, or () for that of the data set"),
        "class_names": several(
            text("", "", lambda name: bool(name) and name.isprintable()),
            "one printable text per class, or () for those of the data set",
        ),
    },
    "augment": {
        "crop_padding": integer(4, 0, 1000),  # pixels put around an image before a random crop
        "border": choice("black", "mirrored"),  # what they are: zeros, or the image turned over at its outermost pixels
        # Of a side that a crop has in the first epoch; from there it grows to 1 in the last one, in whole patches.
        "crop_fraction": share(1.0),
        "flip": choice(True, False),  # mirror half of the images
        "operations": integer(0, 0, 20),  # on colours or geometry, one after the other, see data/augment.py
    },
    "optimizer": {
        "name": choice("sgd", "adam", "muon"),  # Muon: for the matrices inside blocks; Adam for the rest
        "learning_rate": number(0.1, 0, open_low=True),  # the highest of the schedule
        "bias_rate": number(1.0, 0, open_low=True),  # times the learning rate, of biases and of norms' scales
        "momentum": number(0.9, 0, 1),  # of SGD and Muon; Adam has decay rates of its own
        "weight_decay": number(1e-4, 0),  # see training/optimizer.py: decoupled with Muon
        "max_grad_norm": number(0.0, 0),  # longest gradient, of all that is trained together; 0: any
        "covariance_penalty": number(0.0, 0),  # times the mean of (condition number of Sigma^-1 - 1)^2
        "schedule": choice("cosine", "step", "linear", "constant"),  # of the learning rate, after the warm-up
        "warmup_fraction": number(0.05, 0, 1),  # of all steps
    },
    "train": {
        "batch_size": integer(100, 0),  # images per step, of all devices together; 0: what fits their number
        "num_epochs": integer(300, 0),  # passes over the training images; 0: what fits their number
        "eval_batch_size": integer(500, 1),  # images per call; changes no number
        "label_smoothing": number(0.0, 0, 1),  # share of a label spread over all classes, for the gradient
        # Of matrix products in float32. "default": JAX's own, TensorFloat-32 (10 bits of mantissa) on NVIDIA GPUs and
        # bfloat16 on TPUs; "highest": float32 everywhere. CPUs always compute in float32.
        "matmul_precision": choice("default", "high", "highest"),
        "eval_every_epochs": integer(1, 1),  # and after the last one
        "log_every_steps": integer(50, 1),  # training records are means over these steps
        "logger": choice("tensorboard", "none", "trackio", "wandb"),  # where metrics go beside metrics.jsonl
    },
    "checkpoint": {
        "every_epochs": integer(1, 1),
        "keep_last": integer(2, 1),  # the newest; the best and that of step 0 stay too
    },
}


def attention_fields() -> dict[str, Option]:
    """Returns the fields of an attention network: `ATTENTION`, and the options of all registered encodings."""
    known = encodings()
    names = ", ".join(map(repr, sorted(known)))
    encoding = ATTENTION["encoding"]._replace(
        allowed=f"one of {names}; if it is your own, import the file that registers it first, --load=FILE"
    )
    options = {name: option for of_one in known.values() for name, option in of_one.items()}
    return ATTENTION | {"encoding": encoding} | options


def attention_config(**model: Any) -> ConfigDict:
    """Returns the base configuration of an attention network, the paper's `quadratic` run.

    Args:
      **model: values of `config.model` that differ.
    """
    return base(attention_fields(), model)


def resnet_config(**model: Any) -> ConfigDict:
    """Returns the base configuration of the ResNet baseline, ResNet-18 unless `depth` says otherwise."""
    return base(RESNET, model)


def base(fields: dict[str, Option], model: dict[str, Any]) -> ConfigDict:
    """Returns the defaults, with other values of `config.model`; UserError for names that no field has."""
    schema = {"model": fields}
    changed = {key: field_of(schema, f"model.{key}")._replace(default=value) for key, value in model.items()}
    return ConfigDict(defaults(REST | {"model": fields | changed}))


def defaults(schema: dict) -> dict:
    """Returns the default of every field of a schema, for a ConfigDict, which holds each key to its default's type."""
    return {key: defaults(field) if isinstance(field, dict) else default_of(field) for key, field in schema.items()}


def default_of(field: Option) -> Any:
    """Returns a field's default, as a reference where the field may hold any type."""
    return FieldReference(field.default, field_type=object) if field.any_type else field.default


def schema_of(config: ConfigDict) -> dict:
    """Returns the fields of a configuration: of its kind of network, and the rest."""
    return REST | {"model": RESNET if network_kind(config) == "resnet" else attention_fields()}


def flatten(values: ConfigDict | dict, prefix: str = "") -> dict[str, Any]:
    """Returns a configuration or a schema on one level: `{"train.batch_size": 100, ...}`."""
    flat = {}
    for key, value in values.items():
        inner = isinstance(value, ConfigDict | dict)
        flat |= flatten(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def network_kind(config: ConfigDict) -> Any:
    """Returns `config.model.name`, "attention" where it is missing."""
    model = config.get("model")
    return model.get("name", "attention") if isinstance(model, ConfigDict) else "attention"


def with_defaults(config: ConfigDict) -> ConfigDict:
    """Returns a copy of a saved configuration, with the keys that it lacks at their defaults."""

    def fill(values: dict, schema: dict) -> dict:
        known = {key: fill(value, schema[key]) for key, value in values.items() if isinstance(schema.get(key), dict)}
        return defaults(schema) | values | known

    return ConfigDict(fill(config.to_dict(), schema_of(config)))


# What other frameworks call keys.
OTHER_NAMES = {
    "optimizer.learning_rate": ("lr", "base_lr", "learning_rate_init", "step_size"),
    "optimizer.weight_decay": ("wd", "decay", "l2"),
    "optimizer.warmup_fraction": ("warmup", "warmup_epochs", "warmup_steps", "warmup_ratio"),
    "optimizer.max_grad_norm": ("clip_grad", "clip_norm", "gradient_clip_val", "grad_clip"),
    "optimizer.schedule": ("sched", "scheduler", "lr_scheduler", "lr_scheduler_type"),
    "optimizer.name": ("opt", "optim"),
    "augment.border": ("padding_mode", "pad_mode"),
    "train.num_epochs": ("epochs", "epoch", "max_epochs", "num_train_epochs", "n_epochs"),
    "train.batch_size": ("batch", "bs", "per_device_train_batch_size", "train_batch_size"),
    "train.label_smoothing": ("smoothing", "label_smoothing_factor"),
    "train.log_every_steps": ("log_interval", "logging_steps", "log_every_n_steps", "log_every"),
    "checkpoint.keep_last": ("save_total_limit", "save_top_k"),
    "dataset.image_size": ("img_size", "input_size", "imgsz"),
    "dataset.path": ("data_path", "data", "root", "dataset"),
    "model.num_heads": ("heads", "num_attention_heads", "n_heads", "n_head"),
    "model.num_layers": ("layers", "depth", "num_hidden_layers", "n_layers", "n_layer"),
    "model.hidden_size": ("dim", "embed_dim", "d_model", "hidden_dim", "n_embd"),
    "model.intermediate_size": ("mlp_dim", "d_ff"),
    "model.downsample": ("patch_size", "patch"),
    "start.run": ("pretrained", "resume_from", "finetune", "init_from", "weights"),
    "seed": ("random_state", "random_seed"),
}


def meant_by(name: str, schema: dict) -> list[str]:
    """Returns the keys that another framework calls so, or that stand in another room; [] where there are none."""
    known = flatten(schema)
    keys = [key for key, others in OTHER_NAMES.items() if name in others and key in known]
    return [f"config.{key}" for key in keys or [key for key in known if key.split(".")[-1] == name and "." in key]]


def field_of(schema: dict, key: str) -> Option:
    """Returns the field of a key such as `train.batch_size`; UserError where there is none, with what may be meant."""
    options: Any = schema
    above = "config"
    for part in key.split("."):
        if not isinstance(options, dict):
            raise UserError(f"{above}.{part} is not a configuration key: {above} is a single value")
        if part not in options:
            close = [f"{above}.{name}" for name in difflib.get_close_matches(part, options, n=1)]
            close = meant_by(part, schema) or close
            meant = f"did you mean {close[0]}?" if close else f"allowed are {', '.join(sorted(options))}"
            if not close and above == "config.model" and part in RESNET | attention_fields():
                meant = "config.model.name is of other networks: choose a --config of them, quadratic or resnet18"
            raise UserError(f"{above}.{part} is not a configuration key: {meant}")
        options, above = options[part], f"{above}.{part}"
    if isinstance(options, dict):
        raise UserError(f"{above} is no single value: set one of its keys, {', '.join(options)}")
    return options
