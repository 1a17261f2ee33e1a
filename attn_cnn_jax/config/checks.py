"""The check of a configuration that runs before any work.

`validate` refuses unknown keys and impossible values; `complete` fills in what the data set determines.
"""

import math
from typing import Any

import jax
from ml_collections import ConfigDict

from attn_cnn_jax.config.base import MODEL_COMMON, network_kind, schema_of
from attn_cnn_jax.config.fields import Field, unknown_key
from attn_cnn_jax.config.network import depends_on_content, encoding_of, factorises
from attn_cnn_jax.data.builders import OWN, SPECS, Spec
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.encoding import Encoding
from attn_cnn_jax.models.encodings import REGISTRY
from attn_cnn_jax.models.encodings.absolute import Absolute


def validate(config: ConfigDict, *, data_is_known: bool = False) -> None:
    """Raises UserError, naming key, value and what is allowed, unless the configuration makes sense.

    Args:
      config: to check.
      data_is_known: whether it has what the user's own data determines, such as the picture size, as that of a run has.
    """
    if (name := network_kind(config)) not in ("attention", "resnet"):
        _refuse("model.name", name, "'attention' or 'resnet'")
    _check_fields(config, schema_of(config), "config")
    _check_optimizer(config)
    _check_start(config)
    if config.augment.alternate and not config.augment.flip:
        _refuse("augment.alternate", True, "False without config.augment.flip")
    if config.train.figures_every_epochs and not config.train.tensorboard:
        _refuse("train.figures_every_epochs", config.train.figures_every_epochs, "0 without config.train.tensorboard")
    enabled = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    if config.model.dtype == "float64" and not enabled:
        _refuse("model.dtype", "float64", "float32 or bfloat16 (float64 needs JAX_ENABLE_X64=1)")
    _check_dataset(config.dataset, data_is_known=data_is_known)
    shape_is_known = config.dataset.name in SPECS or data_is_known
    if config.augment.half_size_until:
        _check_half_size(config, shape_is_known=shape_is_known)
    if config.model.name == "attention":
        _check_attention(config.model, shape_is_known=shape_is_known)


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


def _refuse(key: str, value: Any, allowed: str) -> None:
    raise UserError(f"config.{key}={value!r}: allowed is {allowed}")


def _check_optimizer(config: ConfigDict) -> None:
    boundaries = tuple(config.optimizer.boundaries)
    if list(boundaries) != sorted(set(boundaries)):
        _refuse("optimizer.boundaries", boundaries, "a tuple of increasing epochs")


def _check_half_size(config: ConfigDict, *, shape_is_known: bool) -> None:
    share, model = config.augment.half_size_until, config.model
    height, width, _ = model.image_shape
    squares = 2 * model.get("downsample", 1)
    if shape_is_known and (height % squares or width % squares):
        allowed = f"0 for {height}x{width} pictures: both sides must be divisible by {squares}"
        _refuse("augment.half_size_until", share, allowed)
    if model.name == "attention" and issubclass(encoding_of(model), Absolute):
        _refuse("augment.half_size_until", share, f"0 for encoding {model.encoding!r}, whose positions are absolute")


def _check_start(config: ConfigDict) -> None:
    start = config.start
    is_attention = config.model.name == "attention"
    if start.whiten and not (is_attention and config.model.stem == "none"):
        _refuse("start.whiten", True, "False for a ResNet and for a network with a stem")
    encoding = encoding_of(config.model) if is_attention else None
    changes = [key for key in ("prune", "reset") if start[key]]
    if start.kernel and (start.run or config.model.get("init") != "grid"):
        _refuse("start.kernel", start.kernel, "'' unless config.model.init='grid', and beside config.start.run")
    if changes and not start.run:
        _refuse(f"start.{changes[0]}", True, "False without a run to start from, config.start.run")
    for key, nothing in (("freeze", ""), ("rate_factor", 1.0), ("new_head", False)):
        if start[key] != nothing and not start.run:
            _refuse(f"start.{key}", start[key], f"{nothing!r} without a run to start from, config.start.run")
    if len(changes) == 2:
        _refuse("start.reset", True, "False beside config.start.prune: a head is removed or reset")
    if start.heads and not changes:
        _refuse("start.heads", start.heads, "() without config.start.prune or config.start.reset")
    if changes and not is_attention:
        _refuse(f"start.{changes[0]}", True, f"False for a {config.model.name}")
    if changes and not start.heads and depends_on_content(config.model):
        allowed = "pairs (layer, head): with content, a head without a position of its own still attends"
        _refuse("start.heads", (), allowed)
    if start.freeze_positions and not (encoding and encoding.positions):
        _refuse("start.freeze_positions", True, f"False for encoding {config.model.get('encoding')!r}")
    if start.freeze_values and not is_attention:
        _refuse("start.freeze_values", True, f"False for a {config.model.name}")
    penalty = config.optimizer.covariance_penalty
    if penalty and not (encoding and encoding.penalised):
        _refuse("optimizer.covariance_penalty", penalty, "0 unless config.model.encoding='quadratic_generalized'")


def _check_dataset(dataset: ConfigDict, *, data_is_known: bool) -> None:
    if dataset.name in OWN and not dataset.path and not data_is_known:
        kind = "a folder of class folders" if dataset.name == "folder" else "a .npz file"
        _refuse("dataset.path", "", f"{kind} for config.dataset.name={dataset.name!r}")
    if dataset.name not in OWN and dataset.path:
        _refuse("dataset.path", dataset.path, f"'' for {dataset.name}; set config.dataset.name=folder or =npz")
    if dataset.name in SPECS and dataset.image_size != 0:
        _refuse("dataset.image_size", dataset.image_size, f"0 for {dataset.name}, whose pictures have one size")


def _check_attention(model: ConfigDict, *, shape_is_known: bool) -> None:
    height, width, _ = model.image_shape
    if shape_is_known and (height % model.downsample or width % model.downsample):
        _refuse("model.downsample", model.downsample, f"a divisor of both sides of the {height}x{width} pictures")
    if isinstance(model.num_heads, tuple | list) and len(model.num_heads) != model.num_layers:
        _refuse("model.num_heads", tuple(model.num_heads), f"one number, or {model.num_layers} (one per layer)")
    encoding = encoding_of(model)
    if model.content and not encoding.accepts_content:
        hint = f"; its options are {', '.join(f'config.model.{name}' for name in encoding.options)}"
        hint = hint if encoding.options else ""
        _refuse("model.content", True, f"False for encoding {model.encoding!r}, which has content of its own{hint}")
    if model.gate and not model.content:
        _refuse("model.gate", True, "False without content, config.model.content=True")
    if model.init == "grid":
        if encoding.start_on_grid is Encoding.start_on_grid:
            _refuse("model.init", "grid", f"'paper' for encoding {model.encoding!r}, which has no centres")
        counts = [model.num_heads] if isinstance(model.num_heads, int) else model.num_heads
        if any(math.isqrt(count) ** 2 != count for count in counts):
            _refuse("model.num_heads", model.num_heads, "a square number for config.model.init='grid'")
    elif model.init_values != "random":
        _refuse("model.init_values", model.init_values, "'random' unless config.model.init='grid'")
    if model.share_tables and not encoding.has_tables:
        _refuse("model.share_tables", True, f"False for encoding {model.encoding!r}, which has no tables")
    if refusal := encoding.refusal(model.to_dict()):
        _refuse(f"model.{refusal[0]}", model[refusal[0]], refusal[1])
    factorising = "only " + " and ".join(sorted(name for name, kind in REGISTRY.items() if kind.factorises))
    if model.attention_dropout_on == "factors" and not factorises(model):
        allowed = f"'probabilities': {factorising} positions factorise"
        _refuse("model.attention_dropout_on", "factors", allowed)
    if model.implementation == "factorised":
        if not factorises(model):
            allowed = f"'auto', 'dense' or 'blocked': {factorising} positions factorise"
            _refuse("model.implementation", "factorised", allowed)
        if model.attention_dropout > 0 and model.attention_dropout_on == "probabilities":
            _refuse(
                "model.implementation",
                "factorised",
                "'auto', 'dense', 'blocked', or set attention_dropout=0.0 or attention_dropout_on='factors'",
            )


def complete(config: ConfigDict, spec: Spec | None = None, *, data_is_known: bool = False) -> ConfigDict:
    """Returns a copy with what the data set determines: picture size, classes, mean and deviation; checked.

    Of a data set of the package, picture size and number of classes may be left at their defaults; other values that
    contradict it are refused. For pictures of the user's own they are taken from the data.

    Args:
      config: of a run.
      spec: of its data set, once that is loaded. None before: then mean, deviation and class names stay as they are,
        and of the user's own data the size and number of classes too.
      data_is_known: see `validate`.
    """
    validate(config, data_is_known=data_is_known)
    config = config.copy_and_resolve_references()
    own = config.dataset.name not in SPECS
    known = spec or SPECS.get(config.dataset.name)
    if known is None:
        return config
    for key, value in (("image_shape", known.image_shape), ("num_classes", known.num_classes)):
        given = config.model[key]
        given = tuple(given) if isinstance(given, tuple | list) else given
        if given not in (MODEL_COMMON[key].default, value) and not own:
            _refuse(f"model.{key}", given, f"{value!r} for {known.name}; leave it out")
        config.model[key] = value
    if spec is not None:
        for key, value in (("mean", spec.mean), ("std", spec.std), ("class_names", spec.class_names)):
            given = tuple(config.dataset[key])
            if len(given) not in (0, len(value)):
                _refuse(f"dataset.{key}", given, f"{len(value)} values for {spec.name}; or leave it out")
            config.dataset[key] = given or value
        config.dataset.has_validation = spec.has_validation
        if spec.has_validation and config.dataset.num_validation:
            place = config.dataset.path or config.dataset.name
            allowed = f"0 for {place}, which has a validation split of its own"
            _refuse("dataset.num_validation", config.dataset.num_validation, allowed)
    validate(config, data_is_known=True)
    return config


def spec_of(config: ConfigDict) -> Spec:
    """Returns what a run keeps of its data set; of runs before 0.2.0, which kept nothing, what the package knows.

    Args:
      config: of a run, complete.
    """
    dataset, model = config.dataset, config.model
    known = SPECS.get(dataset.name)
    return Spec(
        dataset.name,
        tuple(model.image_shape),
        model.num_classes,
        mean=tuple(dataset.mean) or (known.mean if known else ()),
        std=tuple(dataset.std) or (known.std if known else ()),
        class_names=tuple(dataset.class_names) or (known.class_names if known else ()),
        has_validation=dataset.has_validation,
    )


def allowed_values(config: ConfigDict, path: str) -> str:
    """Returns what a key such as `config.train.batch_size` may be, in words."""
    field = schema_of(config)
    for part in path.split(".")[1:]:
        field = field.get(part, {}) if isinstance(field, dict) else field
    return field.allowed if isinstance(field, Field) else "what the config file's type says"
