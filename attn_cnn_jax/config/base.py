"""The base configuration: every value of the paper's experiment, and what each may be, on one page.

Files in configs/ call `attention_config` or `resnet_config` and change what differs.
"""

from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.config.fields import (
    OBSOLETE,
    RENAMED,
    Field,
    boolean,
    choice,
    defaults,
    integer,
    integers,
    number,
    numbers,
    pairs,
    text,
    unknown_key,
)
from attn_cnn_jax.data.builders import OWN, SPECS, is_own
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.implementations import IMPLEMENTATIONS
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.models.layers import ACTIVATIONS
from attn_cnn_jax.models.resnet import BLOCKS, WIDTH

MOST_DROPOUT = 0.9999  # rates are multiples of 2^-16 below 1

MODEL_COMMON = {
    # Taken from the data set in training; the picture size of learned position tables.
    "image_shape": integers((32, 32, 3), 1, "three positive integers (height, width, channels)", length=3),
    "num_classes": integer(10, 2, 100_000),
    "dtype": choice("float32", "bfloat16", "float64"),  # of activations; parameters and softmax: float32
}

ATTENTION = {
    "name": choice("attention"),
    **MODEL_COMMON,
    "encoding": Field(
        "quadratic",
        lambda value: isinstance(value, str) and value in REGISTRY,
        "the name of a registered encoding",
    ),
    "content": boolean(False),  # add q . k / sqrt(D_h) to a quadratic or learned encoding
    "gate": boolean(False),  # or weigh the two softmaxes by a gate per head, as ConViT does
    "init": choice("paper", "grid"),  # of quadratic heads: at random, or on a grid as a kernel's entries
    "locality": number(1.0, 0, open_low=True),  # of init "grid": alpha of every head, in one over squared pixels
    "init_values": choice("random", "identity"),  # of init "grid": or every head moves its share of the channels
    "share_tables": boolean(False),  # one pair of learned position tables for all layers
    "num_layers": integer(6, 1, 1000),
    "num_heads": Field(
        9,
        lambda value: (
            integer(9, 1, 10_000).allows(value)
            or (
                isinstance(value, tuple | list)
                and len(value) > 0
                and all(integer(9, 1, 10_000).allows(n) for n in value)
            )
        ),
        "an integer from 1 to 10000, or one for every layer",
        any_type=True,
    ),
    "hidden_size": integer(400, 1, 100_000),
    "head_size": integer(0, 0, 100_000),  # 0: the hidden size
    "intermediate_size": integer(512, 1, 100_000),
    "activation": choice("gelu", *(name for name in ACTIVATIONS if name != "gelu")),  # of the feed-forward part
    "layer_norm_epsilon": number(1e-12, 0, 1, open_low=True),  # inside the square root
    "stem": choice("none", "resnet"),  # before the down-sampling: the stem and first stage of ResNet-18
    "downsample": integer(2, 1, 1000),  # side of the squares of pixels that become one
    "dropout": number(0.1, 0, MOST_DROPOUT, open_high=False),
    "attention_dropout": number(0.1, 0, MOST_DROPOUT, open_high=False),
    "attention_dropout_on": choice("probabilities", "factors"),  # one by one, or rows and columns of the product
    "implementation": choice(*IMPLEMENTATIONS),  # of attention; "auto": the cheapest that fits
}

RESNET = {
    "name": choice("resnet"),
    **MODEL_COMMON,
    "depth": choice(18, *(d for d in BLOCKS if d != 18)),
    "width": integer(WIDTH, 1, 10_000),  # channels of the first stage; they double from stage to stage
    "layers": choice("convolution", "attention"),  # attention that begins as a convolution, by Theorem 1
    "sharpness": number(5.0, 0, open_low=True),  # of layers "attention": alpha, in one over squared pixels
}


def are_names(value: Any) -> bool:
    """Returns whether a value is a tuple or list of texts."""
    return isinstance(value, tuple | list) and all(isinstance(name, str) and name for name in value)


FIGURES = ("centres", "maps", "training")  # see analysis/figures


REST = {
    "seed": integer(0, 0),
    "start": {  # from a finished run instead of from nothing, see training/start.py
        "run": text("", "a run directory, exported weights, 'pretrained:NAME', or '' to start from nothing"),
        "kernel": text("", "a .npy file with a kernel (K, K, D, D), or ''"),  # that all layers of init "grid" begin as
        "whiten": boolean(False),  # without a run: with an embedding that whitens the patches of training pictures
        "prune": boolean(False),  # remove degenerate heads
        "reset": boolean(False),  # or start them again: position and value weights
        "heads": pairs((), "pairs (layer, head) counted from 1, or () for those that are degenerate"),
        "freeze_positions": boolean(False),  # of all heads that are not reset
        "freeze_values": boolean(False),
        "freeze": text(
            "", "'encoder' (all but the classifier), patterns of parameter names such as 'embedding.*', or ''"
        ),
        "rate_factor": number(
            1.0, 0, 1, open_low=True, open_high=False
        ),  # of the learning rate, for what is taken over from the run: not for heads that are reset
        "new_head": boolean(False),  # whether the classifier starts anew, as it does for another number of classes
    },
    "dataset": {
        "name": Field(
            "cifar10",
            lambda value: isinstance(value, str) and (value in SPECS or is_own(value)),
            f"one of {', '.join(map(repr, sorted([*SPECS, *OWN])))} or 'tfds:NAME'",
        ),
        "path": text("", "of name 'folder' a folder of class folders, of 'npz' a file; else ''"),
        "image_size": Field(
            0,
            lambda value: integer(0, 0, 10_000).allows(value) or integers((), 1, "", length=2).allows(value),
            "of pictures of your own: a side in pixels, (height, width), or 0 for the size that all have",
            any_type=True,
        ),
        "test_fraction": number(0.2, 0, 1, open_low=True),  # of each class, where there is no test split
        "split_seed": integer(0, 0),  # chooses that test split, for all values of `seed` the same
        "skip_unreadable": boolean(False),
        "data_dir": text("", "a folder, or '' for the default of tensorflow-datasets"),
        "feed": choice("auto", "device", "stream"),  # pictures all on the devices, or read from the disk in training
        "workers": integer(0, 0, 1000),  # processes that read from the disk; 0: threads of this process
        "num_validation": integer(0, 0),  # pictures held out of the training set
        # Taken from the data set in training, and kept with the run.
        "mean": numbers((), "one number from 0 per channel, or () for that of the training pictures", low=0),
        "std": numbers((), "one number above 0 per channel, or () for that of the training pictures", low=1e-9),
        "has_validation": boolean(False),  # whether it has a validation split of its own
        "class_names": Field((), are_names, "one text per class, or () for those of the data set"),
    },
    "augment": {
        "crop_padding": integer(4, 0, 1000),
        "flip": boolean(True),
        "alternate": boolean(False),  # mirror every picture in every other epoch, in the place of half at random
        "operations": integer(0, 0, 20),  # on colours or geometry, one after the other, see data/operations.py
        "magnitude": number(0.5, 0, 1, open_low=True),  # of the strongest of them
        "half_size_until": number(0.0, 0, 1),  # share of the epochs, from the first, that see pictures of half the size
        "mix": choice("none", "mixup", "cutmix"),  # of pictures and labels within a batch, see data/mixing.py
        "mix_alpha": number(1.0, 0, open_low=True),  # of the Beta distribution of their shares
    },
    "optimizer": {
        "name": choice("sgd", "adam", "muon"),  # Muon: for the matrices inside blocks; Adam for the rest
        "learning_rate": number(0.1, 0, open_low=True),
        "momentum": number(0.9, 0, 1),  # of SGD and Muon; Adam has decay rates of its own
        "weight_decay": number(1e-4, 0),  # added to the gradient; with Muon 0 is better, see docs/recipe.md
        "average_decay": number(0.0, 0, 1),  # of a moving average of the parameters; 0: none
        "max_grad_norm": number(0.0, 0),  # longest gradient, of all that is trained together; 0: any
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
        "label_smoothing": number(0.0, 0, 1),  # share of a label spread over all classes, for the gradient
        # Of matrix products in float32. "default": JAX's own, TensorFloat-32 (10 bits of mantissa) on NVIDIA GPUs and
        # bfloat16 on TPUs; "highest": float32 everywhere. CPUs always compute in float32.
        "matmul_precision": choice("default", "high", "highest"),
        "eval_every_epochs": integer(1, 1),
        "log_every_steps": integer(50, 1),
        "tensorboard": boolean(True),
        "logger": choice("none", "trackio", "wandb"),  # where metrics go too, see training/loggers.py
        "figures_every_epochs": integer(0, 0),  # in TensorBoard; 0: none
        "figures": Field(
            ("centres", "maps"),
            lambda value: isinstance(value, tuple | list) and len(value) > 0 and all(name in FIGURES for name in value),
            f"some of {', '.join(FIGURES)}",
        ),
    },
    "checkpoint": {
        "every_epochs": integer(1, 1),
        "keep_last": integer(2, 1),
        "keep_every_epochs": integer(0, 0),  # 0: none but the last ones
    },
}


def attention_fields() -> dict[str, Field]:
    """Returns the fields of an attention network: `ATTENTION`, and the options of all registered encodings."""
    names = ", ".join(map(repr, sorted(REGISTRY)))
    encoding = ATTENTION["encoding"]._replace(
        allowed=f"one of {names}; if it is your own, import the file that registers it first"
    )
    options = {name: Field(*option) for kind in REGISTRY.values() for name, option in kind.options.items()}
    return ATTENTION | {"encoding": encoding} | options


def attention_config(**model: Any) -> ConfigDict:
    """Returns the base configuration of an attention network: the paper's `quadratic` run.

    Args:
      **model: values of `config.model` that differ.
    """
    fields = attention_fields()
    return ConfigDict(defaults(REST | {"model": fields | changed(fields, model)}))


def resnet_config(**model: Any) -> ConfigDict:
    """Returns the base configuration of the ResNet baseline, ResNet-18 unless `depth` says otherwise."""
    return ConfigDict(defaults(REST | {"model": RESNET | changed(RESNET, model)}))


def changed(fields: dict[str, Field], values: dict[str, Any]) -> dict[str, Field]:
    """Returns the fields that are given other defaults; UserError for names that no field has."""
    for key in values:
        if key not in fields:
            raise UserError(unknown_key(f"config.model.{key}", fields))
    return {key: fields[key]._replace(default=value) for key, value in values.items()}


def schema_of(config: ConfigDict) -> dict:
    """Returns the fields of a configuration: of its kind of network, and the rest."""
    return REST | {"model": RESNET if network_kind(config) == "resnet" else attention_fields()}


def network_kind(config: ConfigDict) -> Any:
    """Returns `config.model.name`, "attention" where it is missing."""
    model = config.get("model")
    return model.get("name", "attention") if isinstance(model, ConfigDict) else "attention"


def with_defaults(config: ConfigDict) -> ConfigDict:
    """Returns a copy of a saved configuration with the keys of today.

    Renamed keys are under their new names, and keys that earlier versions lack at their defaults. Keys that only
    earlier versions had (fields.OBSOLETE) are left out, see runs/seeds.py for what one of them still means.
    """

    def fill(values: dict, schema: dict, path: str) -> dict:
        here = {RENAMED.get(f"{path}.{key}", key): value for key, value in values.items()}
        missing = defaults({key: field for key, field in schema.items() if key not in here})
        return missing | {
            key: fill(value, schema[key], f"{path}.{key}")
            if isinstance(value, dict) and isinstance(schema.get(key), dict)
            else value
            for key, value in here.items()
            if f"{path}.{key}" not in OBSOLETE
        }

    return ConfigDict(fill(config.to_dict(), schema_of(config), "config"))
