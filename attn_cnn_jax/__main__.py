"""Trains a network wherever the package is installed: `python -m attn_cnn_jax --config=digits [--workdir=DIR] ...`.

The same command as train.py of a checkout; --config takes a file, or the name of one of those that come along.
"""

import sys
from pathlib import Path

from attn_cnn_jax.cli import train as command
from attn_cnn_jax.errors import UserError, says_errors

PACKAGE = Path(__file__).parent


def known_configs() -> dict[str, Path]:
    """The configuration files that come along, by name: of the installed package, or of the checkout around it."""
    installed = PACKAGE / "configs"
    folder = installed if installed.is_dir() else PACKAGE.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


@says_errors
def main(argv: list[str] | None = None) -> int:
    """Runs the command line (program name first; that of the process by default); returns its exit status."""
    argv = list(sys.argv if argv is None else argv)
    known = known_configs()
    for n, argument in enumerate(argv):
        flag, _, name = argument.partition("=")
        if flag in ("--config", "-config") and name and not Path(name.split(":")[0]).exists():
            if name not in known:
                raise UserError(f"there is no config file {name}; give its path, or one of {', '.join(known)}")
            argv[n] = f"{flag}={known[name]}"
    return command.main(argv)


if __name__ == "__main__":
    sys.exit(main())
