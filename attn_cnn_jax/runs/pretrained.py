"""The trained networks that are part of the package, one folder per name in pretrained/; see weights.py."""

from pathlib import Path

from attn_cnn_jax.errors import UserError

FOLDER = Path(__file__).parent.parent / "pretrained"
PREFIX = "pretrained:"  # tells a name from a path where both are taken


def names() -> list[str]:
    """Returns the names of the included networks."""
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def located(run: Path | str) -> Path:
    """Returns the directory of a run, which may be given as `pretrained:NAME`; UserError where there is no such name.

    `~` is the home folder.
    """
    name = str(run).removeprefix(PREFIX)
    if name == str(run):
        return Path(run).expanduser()
    if name not in names():
        raise UserError(f"no pretrained network is called {name!r}: allowed are {', '.join(names())}")
    return FOLDER / name


def existing(run: Path | str) -> Path:
    """Returns the directory of a run, see `located`; UserError where it holds none."""
    folder = located(run)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a run directory: it has no config.json; train one with train.py --workdir")
    return folder
