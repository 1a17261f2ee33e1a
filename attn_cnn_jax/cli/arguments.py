"""The parser of all subcommands, flags that several share, types of arguments, and configuration overrides."""

import argparse
import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.output import printable
from attn_cnn_jax.runs.pretrained import FOLDER, located

OVERRIDE = re.compile(r"--?config\.[^=]+(=.*)?", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """A parser whose help keeps the line breaks of docstrings, and whose errors are two lines."""

    def __init__(self, **kwargs):
        # A line such as --config.seed=1 must not be taken for an abbreviation of another flag.
        super().__init__(**kwargs, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        self.takes_overrides = False
        which = "first import this Python file, such as one that registers an encoding of your own"
        self.add_argument("--load", action="append", default=[], metavar="FILE", help=which)

    def share(self, *names: str) -> None:
        """Adds flags of `SHARED`."""
        for name in names:
            self.add_argument(name, **SHARED[name])

    def take_overrides(self) -> None:
        """Accepts `--config.a.b=VALUE`, which `args.overrides` then lists as typed."""
        self.takes_overrides = True
        # Only for the help: `separate` removes these words before argparse sees them.
        which = "override a value, such as --config.model.num_heads=4"
        self.add_argument_group("configuration").add_argument("--config.KEY", metavar="VALUE", help=which)

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong with the flags and exits with status 2."""
        self.exit(2, f"{self.prog}: {printable(message)}\n{self.prog} --help lists the flags\n")


class Joined(argparse.Action):
    """Keeps the lists that a type makes of several words as one."""

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, [item for found in values or () for item in found])


def separate(words: list[str]) -> tuple[list[str], list[str]]:
    """Splits a command line into configuration overrides and the rest.

    argparse would take an override with a blank in its value for a positional argument. The value of an override
    without `=` goes with it: reading the configuration then refuses the override and says how to write it.
    """
    overrides, rest, value_is_missing = [], [], False
    for word in words:
        if OVERRIDE.fullmatch(word):
            overrides.append(word)
        elif word.startswith("-") or not value_is_missing:
            rest.append(word)
        value_is_missing = OVERRIDE.fullmatch(word) is not None and "=" not in word
    return overrides, rest


@contextlib.contextmanager
def users_code(path: Path, failed: str) -> Iterator[None]:
    """Lets a user's Python file import from beside it; whatever it raises becomes a UserError that begins so."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{failed}: {type(error).__name__}: {shortened(error)}") from error


def import_file(name: str) -> None:
    """Imports a Python file under its stem, as a file beside it would; UserError unless that is the module."""
    path = Path(name)
    if not path.is_file():
        raise UserError(f"--load={name}: there is no such file")
    with users_code(path, f"--load={name} cannot be imported"):
        module = importlib.import_module(path.stem)
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise UserError(f"--load={name}: Python has another module {path.stem!r}: rename the file")


def run_directory(text: str) -> Path:
    """Returns the folder of a run directory, of exported weights, or of `pretrained:NAME`."""
    return located(text).expanduser()


def run_directories(text: str) -> list[Path]:
    """Returns the folder of a run, or those of all seeds in a folder that `attn-cnn train --seeds` made."""
    folder = run_directory(text)
    if (folder / "config.json").exists():
        return [folder]
    seeds = [path.parent for path in folder.glob("seed_*/config.json")]
    return sorted(seeds, key=lambda path: (len(path.name), path.name)) or [folder]


def beside(run: Path, name: str) -> Path:
    """Returns where a command writes by default: into the run directory; for a pretrained network, the current folder.

    Refuses a folder that is a link, by which a run from elsewhere may lead anywhere.
    """
    place = Path(name) if run.is_relative_to(FOLDER) else run / name
    if place.is_symlink() and place.is_dir():
        raise UserError(f"{place} is a link to {os.readlink(place)}: name a folder to write to with --out=DIR")
    return place


def as_path(text: str) -> Path:
    """Returns a path; `~` is the home folder, which a shell leaves as it is in `--workdir=~/x`."""
    return Path(text).expanduser()


def value_of(convert: Callable[[str], Any], allowed: str) -> Callable[[str], Any]:
    """Returns a type for argparse: `convert`, whose ValueError becomes a message that says what is allowed."""

    def parse(text: str) -> Any:
        try:
            return convert(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: allowed is {allowed}") from None

    return parse


def checked(value: Any, valid: bool) -> Any:
    """Returns a value, ValueError unless it is valid."""
    if not valid:
        raise ValueError
    return value


def _positive(text: str) -> int:
    return checked(int(text), int(text) > 0)


def _pixel(text: str) -> tuple[int, int]:
    row, column = map(int, text.split(","))
    return row, column


def _image_size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    return _positive(height), _positive(width if "x" in text else height)


def _integers(text: str) -> list[int]:
    found = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found += range(int(first), int(last) + 1) if dash else [int(first)]
    return checked(found, bool(found) and len(set(found)) == len(found) and min(found) >= 0)


at_least_one = value_of(_positive, "an integer from 1")
pixel = value_of(_pixel, "ROW,COLUMN, both from 0, such as 4,4")
image_size = value_of(_image_size, "64 or HEIGHTxWIDTH, such as 32x48")
integers = value_of(_integers, "different integers from 0, such as 0-4 or 0,2,5")
step = value_of(lambda text: text if text in ("latest", "best") else int(text), "latest, best or the number of a step")

SHARED: dict[str, dict[str, Any]] = {
    "run": {
        "type": run_directory,
        "metavar": "RUN",
        "help": "run directory, folder of exported weights, or pretrained:NAME",
    },
    "runs": {
        "type": run_directories,
        "metavar": "RUN",
        "nargs": "+",
        "action": Joined,
        "help": "run directories, folders that train --seeds made, folders of exported weights, or pretrained:NAME",
    },
    "--step": {"type": step, "default": "latest", "help": "checkpoint: latest (default), best, or its number"},
    "--data-dir": {"metavar": "DIR", "help": "folder of the data set, if not the one used in training"},
    "--size": {
        "type": image_size,
        "metavar": "N|HxW",
        "help": "run the network at this size in pixels, without training: positions and patches grow with the image",
    },
    "--log-pixels": {
        "action": "store_true",
        "help": "with --size: multiply scores of attention by log n / log n_train, n pixels of attention",
    },
    "--images": {  # `analysis.images.AVERAGED` of them
        "type": at_least_one,
        "metavar": "N",
        "help": "test images to average content over (100, or all where there are fewer)",
    },
}
