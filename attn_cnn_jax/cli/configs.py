"""Configurations as a command line names them: by file or by name, with overrides `--config.a.b=VALUE`."""

import ast
import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.cli.arguments import Parser, users_code
from attn_cnn_jax.config.base import MODEL_COMMON, field_of, schema_of
from attn_cnn_jax.config.shipped import known_configs
from attn_cnn_jax.errors import UserError, shortened

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def add_config(parser: Parser) -> None:
    """Adds `--config` and its overrides, for a subcommand that needs a configuration."""
    which = f"{', '.join(known_configs())}, or a file like theirs"
    parser.add_argument("--config", metavar="NAME|FILE", required=True, help=which)
    parser.take_overrides()


def find_config(name: str) -> Path:
    """Returns the file of a configuration given as a name such as `digits`, or as a path; UserError if neither."""
    known = known_configs()
    if name not in known and not Path(name).is_file():
        raise UserError(f"there is no config file {name or repr(name)}; give its path, or one of {', '.join(known)}")
    return known.get(name, Path(name))


def run_name(name: str) -> str:
    """Returns what a run of a configuration is called: `configs/x.py -> x`, `x:text -> x_text`."""
    name, *text = name.split(":", 1)
    return "_".join([find_config(name).stem, *(re.sub(r"\W+", "_", part) for part in text if part)])


def load_config(name: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """Returns the configuration of a file, with overrides; its values are not checked against each other.

    Args:
      name: a name or path, see `find_config`; `FILE:TEXT` calls `get_config(TEXT)`.
      overrides: words `--config.a.b=VALUE`, applied in their order. With `config.dataset.name` the image size and
        the number of classes are those of that data set, unless overridden too.
    """
    name, *text = name.split(":", 1)
    path = find_config(name)
    with users_code(path, f"{path} cannot be loaded"):
        get_config = runpy.run_path(str(path)).get("get_config")
        config = get_config(*text) if callable(get_config) else None
    if not isinstance(config, ConfigDict):
        raise UserError(f"{path}: get_config() must return an ml_collections.ConfigDict")
    schema, values = schema_of(config), dict(override.lstrip("-").split("=", 1) for override in overrides)
    for key, value in values.items():
        field = field_of(schema, key.removeprefix("config."))
        try:
            config.update_from_flattened_dict({key: typed(value, field.default)}, "config.")
        except (LookupError, TypeError, ValueError, SyntaxError) as error:
            raise UserError(f"{key}={shortened(value)!r}: allowed is {field.allowed}") from error
    if "config.dataset.name" in values:  # what the file says of its own data set is not meant for another
        for key in ("image_shape", "num_classes"):
            if f"config.model.{key}" not in values and key in config.get("model", {}):
                config.model[key] = MODEL_COMMON[key].default
    return config


def typed(text: str, like: Any) -> Any:
    """Returns what a text means as the value of a key that has the value `like`."""
    if isinstance(like, str):
        return text
    return BOOLEANS[text.lower()] if isinstance(like, bool) else ast.literal_eval(text)
