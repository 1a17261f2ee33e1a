"""The trained networks that are part of the package, one folder per name in pretrained/; see weights.py."""

from pathlib import Path

from attn_cnn_jax.errors import UserError

FOLDER = Path(__file__).parent.parent / "pretrained"
PREFIX = "pretrained:"  # tells a name from a path where both are taken


def names() -> list[str]:
    """Returns the names of the included networks."""
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def folder_of(name: str) -> Path:
    """Returns the folder of an included network; UserError where there is no such name."""
    if name not in names():
        raise UserError(f"no pretrained network is called {name!r}: allowed are {', '.join(names())}")
    return FOLDER / name


def located(run: Path | str) -> Path:
    """Returns the directory of a run, which may be given as `pretrained:NAME`."""
    text = str(run)
    return folder_of(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else Path(run)
