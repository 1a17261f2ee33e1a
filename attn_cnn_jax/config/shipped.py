"""The configuration files that come with the package, by name."""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError


def known_configs() -> dict[str, Path]:
    """Returns the configuration files of the installed package, or of the checkout around it, by name."""
    package = Path(__file__).parent.parent
    folder = package / "configs" if (package / "configs").is_dir() else package.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def shipped(name: str) -> ConfigDict:
    """Returns a configuration of the package by its name; `NAME:TEXT` calls its `get_config(TEXT)`.

    UserError where there is none; lists the names that there are.
    """
    stem, *text = name.split(":", 1)
    known = known_configs()
    if stem not in known:
        raise UserError(f"no configuration is called {stem!r}: allowed are {', '.join(known)}")
    return runpy.run_path(str(known[stem]))["get_config"](*text)
