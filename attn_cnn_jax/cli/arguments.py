"""The parser of all subcommands: flags that several share, types of arguments, the user's own Python files."""

import argparse
import contextlib
import importlib
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

    takes_overrides = False

    def __init__(self, **kwargs):
        # A line such as --config.seed=1 must not be taken for an abbreviation of another flag.
        super().__init__(**kwargs, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
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
        message += hint(message) if self.takes_overrides else ""
        self.exit(2, f"{self.prog}: {printable(message)}\n{self.prog} --help lists the flags\n")


def hint(message: str) -> str:
    """Returns `: did you mean --config.train.num_epochs?` for unknown flags that are keys, or what others call them."""
    from attn_cnn_jax.config.base import attention_config, meant_by, schema_of  # JAX, which other errors need not

    unknown = re.findall(r"--([\w-]+)", message) if "unrecognized arguments" in message else []
    schema = schema_of(attention_config()) if unknown else {}
    keys = [key for word in unknown for key in meant_by(word.replace("-", "_"), schema)[:1]]
    keys += [f"config.{word}" for word in unknown if word in schema and not isinstance(schema[word], dict)]
    return f": did you mean {', '.join(f'--{key}' for key in keys)}?" if keys else ""


def separate(words: list[str]) -> tuple[list[str], list[str]]:
    """Splits a command line into configuration overrides and the rest; UserError for an override without a value.

    argparse would take an override with a blank in its value for a positional argument.
    """
    overrides = [word for word in words if OVERRIDE.fullmatch(word)]
    for word in overrides:
        if "=" not in word:
            raise UserError(f"{word} has no value: write {word}=VALUE, --help lists what is allowed")
    return overrides, [word for word in words if not OVERRIDE.fullmatch(word)]


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


def run_directories(text: str) -> list[Path]:
    """Returns the folder of a run, or those of all seeds in a folder that `attn-cnn train --seeds` made."""
    folder = located(text)
    seeds = [] if (folder / "config.json").exists() else [path.parent for path in folder.glob("seed_*/config.json")]
    return sorted(seeds, key=lambda path: (len(path.name), path.name)) or [folder]


def beside(run: Path, name: str) -> Path:
    """Returns where a command writes by default: the run directory, or for a pretrained network the current folder."""
    return Path(name) if run.is_relative_to(FOLDER) else run / name


def as_path(text: str) -> Path:
    """Returns a path; `~` is the home folder, which a shell leaves as it is in `--workdir=~/x`."""
    return Path(text).expanduser()


def matching(pattern: str, convert: Callable[[str], Any], allowed: str) -> Callable[[str], Any]:
    """Returns a type for argparse: `convert` of a text that matches; else, and for ValueError, says what is allowed."""

    def parse(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if re.fullmatch(pattern, text):
                return convert(text)
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is {allowed}")

    return parse


def numbers_in(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def _integers(text: str) -> list[int]:
    ends = [numbers_in(part) for part in text.split(",")]
    numbers = [number for first, *last in ends for number in range(first, (last or [first])[0] + 1)]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError
    return numbers


from_zero = matching(r"\d+", int, "an integer from 0")
at_least_one = matching(r"0*[1-9]\d*", int, "an integer from 1")
pixel = matching(r"\d+,\d+", numbers_in, "ROW,COLUMN, both from 0, such as 4,4")
image_size = matching(r"[1-9]\d*(x[1-9]\d*)?", lambda text: (numbers_in(text) * 2)[:2], "64 or HEIGHTxWIDTH, as 32x48")
integers = matching(r"\d+(-\d+)?(,\d+(-\d+)?)*", _integers, "different integers from 0, such as 0-4 or 0,2,5")
step = matching(r"latest|best|\d+", lambda text: int(text) if text.isdecimal() else text, "latest, best or a step")

RUN = "folder of exported weights, or pretrained:NAME"
AVERAGED = "test images to average content over (100, or all where there are fewer)"  # `analysis.test_images.AVERAGED`
SIZE = "run the network at this size in pixels, without training: positions and patches grow with the image"
SHARED: dict[str, dict[str, Any]] = {
    "run": dict(type=located, metavar="RUN", help=f"run directory, {RUN}"),
    "runs": dict(type=run_directories, metavar="RUN", nargs="+", help=f"run directory or folder of --seeds, {RUN}"),
    "--step": dict(type=step, default="latest", help="checkpoint: latest (default), best, or its number"),
    "--data-dir": dict(metavar="DIR", help="folder of the data set, if not the one used in training"),
    "--size": dict(type=image_size, metavar="N|HxW", help=SIZE),
    "--images": dict(type=at_least_one, metavar="N", help=AVERAGED),
}
