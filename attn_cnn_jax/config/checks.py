"""The checks of a configuration, and what it takes from its data set."""

import math
from typing import Any

import jax
from ml_collections import ConfigDict

from attn_cnn_jax.config.base import MODEL_COMMON, field_of, flatten, network_kind, schema_of
from attn_cnn_jax.config.network import heads_by_layer
from attn_cnn_jax.data.sets import OWN, SPECS, Spec, source_of
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.encodings import CentredEncoding, Encoding, GeneralizedQuadratic, encoding_class


def validate(config: ConfigDict) -> None:
    """Raises UserError, naming key, value and what is allowed, unless the configuration makes sense.

    Args:
      config: with the image size and number of classes of its data set, as that of a run has them.
    """
    check_fields(config)
    check_combinations(config)


def complete(config: ConfigDict, spec: Spec | None = None, num_images: int = 0) -> ConfigDict:
    """Returns a checked copy with what the data set determines: image size, classes, mean and standard deviation.

    And, where they are 0, the batch size and the number of epochs.

    Of a data set of the package, image size and number of classes may be left at their defaults; other values that
    contradict it are refused. For the user's own images they are taken from the data.

    Args:
      config: of a run.
      spec: of its data set, once that is loaded. None before: of the user's own data nothing is filled in, and only
        the values one by one are checked.
      num_images: its training images, with those that validate; 0 for those of `spec`.

    Raises:
      UserError: see `validate`.
    """
    check_fields(config)
    config = config.copy_and_resolve_references()
    name, known = config.dataset.name, spec or SPECS.get(config.dataset.name)
    if known is None:
        if name in OWN and not config.dataset.path:
            kind = "a folder of class folders" if name == "folder" else "a .npz file"
            not_allowed("dataset.path", "", f"{kind} for config.dataset.name={name!r}")
        return config
    for key, value in (("image_shape", known.image_shape), ("num_classes", known.num_classes)):
        given = config.model[key]
        given = tuple(given) if isinstance(given, tuple | list) else given
        if name in SPECS and given not in (MODEL_COMMON[key].default, value):
            not_allowed(f"model.{key}", given, f"{value!r} for {known.name}; leave it out")
        config.model[key] = value
    for key, value in (("mean", known.mean), ("std", known.std), ("class_names", known.class_names)):
        given = tuple(config.dataset[key])
        if len(given) not in (0, len(value)):
            not_allowed(f"dataset.{key}", given, f"{len(value)} values for {known.name}; or leave it out")
        config.dataset[key] = given or value
    if known.has_validation and config.dataset.num_validation:
        allowed = f"0 for {config.dataset.path or name}, which has a validation split of its own"
        not_allowed("dataset.num_validation", config.dataset.num_validation, allowed)
    check_combinations(config)
    if count := max(0, (num_images or known.train_examples) - config.dataset.num_validation):
        train = config.train
        # A dozen steps per epoch, of 8 to 50 images; 600 steps together, in 12 to 100 epochs.
        train.batch_size = train.batch_size or min(max(8, count // 12), 50, count)
        train.num_epochs = train.num_epochs or min(max(12, -(-600 // max(1, count // train.batch_size))), 100)
    return config


def spec_of(config: ConfigDict) -> Spec:
    """Returns what a run keeps of its data set, of one of the package also where the configuration is not complete."""
    dataset, model = config.dataset, config.model
    known = SPECS.get(dataset.name)
    return Spec(
        dataset.name,
        tuple(model.image_shape),
        model.num_classes,
        mean=tuple(dataset.mean) or (known.mean if known else ()),
        std=tuple(dataset.std) or (known.std if known else ()),
        class_names=tuple(dataset.class_names) or (known.class_names if known else ()),
    )


def image_shape(config: ConfigDict) -> tuple[int, int, int]:
    """Returns the shape `(H, W, C)` of a network's images, also where the configuration is not complete.

    Of one's own images the size is `config.dataset.image_size` there, UserError without, and the channels are those of
    `config.model.image_shape`.
    """
    dataset, (height, width, channels) = config.dataset, config.model.image_shape
    if dataset.mean:  # complete
        return height, width, channels
    if dataset.name in SPECS:
        return SPECS[dataset.name].image_shape
    if not any(size := source_of(dataset).image_size):
        not_allowed("dataset.image_size", dataset.image_size, "a size, or give a run: that of the images is not known")
    return (*size, channels)


def not_allowed(key: str, value: Any, allowed: str) -> None:
    raise UserError(f"config.{key}={value!r}: allowed is {allowed}")


def check_fields(config: ConfigDict) -> None:
    """Raises UserError for unknown and missing keys, and values that are not allowed whatever the others are."""
    if (name := network_kind(config)) not in ("attention", "resnet"):
        not_allowed("model.name", name, "'attention' or 'resnet'")

    schema, values = schema_of(config), flatten(config)
    for key in values:
        field_of(schema, key)
    for key, field in flatten(schema).items():
        if key not in values:
            raise UserError(f"config.{key} is missing: start from attention_config() or resnet_config()")
        if not field.allows(values[key]):
            not_allowed(key, values[key], field.allowed)
    if (dataset_range := tuple(values["dataset.range"]))[0] >= dataset_range[1]:
        not_allowed("dataset.range", dataset_range, "(low, high) with low below high")


def check_combinations(config: ConfigDict) -> None:
    """Raises UserError for values that do not go together; what a layer cannot do it refuses when it is created."""
    dataset = config.dataset
    enabled = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    if config.model.dtype == "float64" and not enabled:
        not_allowed("model.dtype", "float64", "float32 or bfloat16 (float64 needs JAX_ENABLE_X64=1)")
    if dataset.name not in OWN and dataset.path:
        not_allowed("dataset.path", dataset.path, f"'' for {dataset.name}; set config.dataset.name=folder or =npz")
    if dataset.name in SPECS and dataset.image_size != 0:
        not_allowed("dataset.image_size", dataset.image_size, f"0 for {dataset.name}, whose images have one size")
    encoding = encoding_class(config.model.encoding) if config.model.name == "attention" else None
    if encoding:
        check_attention(config.model, encoding)
    if config.augment.crop_fraction < 1 and config.model.get("encoding") == "absolute_learned":
        not_allowed("augment.crop_fraction", config.augment.crop_fraction, "1.0 with a learned vector for every pixel")
    if config.augment.border != "black" and not config.augment.crop_padding:
        not_allowed("augment.border", config.augment.border, "'black' with config.augment.crop_padding=0")
    check_start(config, encoding)
    penalty = config.optimizer.covariance_penalty
    if penalty and not (encoding and issubclass(encoding, GeneralizedQuadratic)):
        not_allowed("optimizer.covariance_penalty", penalty, "0 unless config.model.encoding='quadratic_generalized'")


def check_start(config: ConfigDict, encoding: type[Encoding] | None) -> None:
    start, has_positions = config.start, encoding is not None and encoding.accepts_content()
    for key in ("prune", "reset", "freeze"):
        if start[key] and not start.run:
            not_allowed(
                f"start.{key}", start[key], f"{type(start[key])()!r} without a run to start from, config.start.run"
            )
    if start.prune and start.reset:
        not_allowed("start.reset", True, "False beside config.start.prune: a head is removed or reset")
    change = "prune" if start.prune else "reset" if start.reset else ""
    if start.heads and not change:
        not_allowed("start.heads", start.heads, "() without config.start.prune or config.start.reset")
    if change and encoding is None:
        not_allowed(f"start.{change}", True, f"False for a {config.model.name}")
    if change and not start.heads and (config.model.content or not has_positions):
        allowed = "pairs (layer, head): with content, a head without a position of its own still attends"
        not_allowed("start.heads", (), allowed)
    words = [word.strip() for word in start.freeze.split(",")]
    for word, has in (("positions", has_positions), ("values", encoding is not None)):
        if word in words and not has:
            network = f"encoding {config.model.encoding!r}" if encoding else f"a {config.model.name}"
            not_allowed("start.freeze", start.freeze, f"without {word!r} for {network}")


def check_attention(model: ConfigDict, encoding: type[Encoding]) -> None:
    height, width, _ = model.image_shape
    if height % model.downsample or width % model.downsample:
        not_allowed("model.downsample", model.downsample, f"a divisor of both sides of the {height}x{width} images")
    if model.window == model.downsample:
        not_allowed("model.window", model.window, "0, which means a side of config.model.downsample, or another one")
    if isinstance(model.num_heads, tuple | list) and len(model.num_heads) != model.num_layers:
        not_allowed("model.num_heads", tuple(model.num_heads), f"one number, or {model.num_layers} (one per layer)")
    if model.init in ("grid", "identity", "impulse"):
        if not issubclass(encoding, CentredEncoding):
            allowed = f"'paper' or 'mimetic' for encoding {model.encoding!r}, which has no centres"
            not_allowed("model.init", model.init, allowed)
        if any(math.isqrt(count) ** 2 != count for count in heads_by_layer(model)):
            not_allowed("model.num_heads", model.num_heads, f"a square number for config.model.init={model.init!r}")
    single = model.attention_dropout > 0 and model.attention_dropout_on == "probabilities"
    if model.implementation == "factorised" and single:
        allowed = "'auto', 'dense', 'blocked', or set attention_dropout=0.0 or attention_dropout_on='factors'"
        not_allowed("model.implementation", "factorised", allowed)


def check_counts(batch_size: int, dataset: ConfigDict, num_images: int) -> None:
    """Raises UserError unless the training set of `config.dataset` fills a batch beside the validation split."""
    if dataset.num_validation + batch_size > num_images:
        raise UserError(
            f"config.train.batch_size={batch_size} and config.dataset.num_validation={dataset.num_validation}: "
            f"together they must not exceed {num_images:,}, the training images of {dataset.name}"
        )
