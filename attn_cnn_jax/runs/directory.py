"""A run directory: held by one training at a time, with the configuration of its run in `config.json`."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import filelock
from ml_collections import ConfigDict

from attn_cnn_jax.config import with_defaults
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.runs.seeds import seeds_of

# Where the data lies is no part of an experiment: a run may move to another machine.
MAY_CHANGE = ("dataset.data_dir",)
MOST_SHOWN = 5  # keys that differ, in a message


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Creates the run directory and holds it for the block; removes it if no run began.

    Raises:
      UserError: if the directory cannot be written to, or another process holds it.
    """
    lock = filelock.FileLock(workdir / ".lock", blocking=False)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        raise UserError(f"another process is training in {workdir}: wait for it, or choose --workdir=DIR") from None
    except OSError as error:
        raise UserError(
            f"cannot write to the run directory {workdir}: {error.strerror or error}; choose --workdir=DIR"
        ) from error
    try:
        yield
    finally:
        if not (workdir / "config.json").exists():
            discard(workdir)
        lock.release()


def discard(workdir: Path) -> None:
    """Removes a run directory in which no run began, unless something else lies in it."""
    with contextlib.suppress(OSError):
        (workdir / ".lock").unlink()
        workdir.rmdir()


def to_json(config: ConfigDict) -> str:
    """Returns a configuration as the text of `config.json`."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_json(text: str) -> ConfigDict:
    """Returns the configuration that `to_json` wrote; tuples come back as lists. ValueError if it is none."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("it holds no JSON object")
    return ConfigDict(values)


def read_config(workdir: Path) -> ConfigDict | None:
    """Returns the configuration of the run in a directory as it was saved, None where there is none.

    Raises:
      UserError: if `config.json` is damaged.
    """
    path = workdir / "config.json"
    try:
        return from_json(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore it, or choose --workdir=DIR") from error


def claim(workdir: Path, config: ConfigDict) -> None:
    """Writes `config.json` unless it is there; UserError, see `check_same`, if it is another run's."""
    before = read_config(workdir)
    check_same(workdir, before, config)
    if before is None:
        write_atomically(workdir / "config.json", to_json(config))


def check_same(place: Path | str, before: ConfigDict | None, config: ConfigDict) -> None:
    """Checks that the run in a place, where there is one, has this configuration.

    Args:
      place: what to call it in a message.
      before: the configuration found there, as it was saved; None where there is none.
      config: of the run that would train there.

    Raises:
      UserError: with the keys that differ; or for a run of several seeds, which can only be read.
    """
    if before is None:
        return
    if len(seeds := seeds_of(before)) > 1:
        raise UserError(
            f"{place} holds a run of {len(seeds)} seeds, which version 0.1.0 trained together: it can be read, but not "
            f"continued\ntrain one run directory per seed: attn-cnn train --seeds={seeds[0]}-{seeds[-1]}"
        )
    old, new = (flatten(from_json(to_json(each))) for each in (with_defaults(before), config))
    differing = [key for key in sorted(old | new) if old.get(key) != new.get(key) and key not in MAY_CHANGE]
    if differing:
        changes = [f"{key} ({old.get(key)!r} there, {new.get(key)!r} here)" for key in differing]
        if len(changes) > MOST_SHOWN:
            changes[MOST_SHOWN:] = [f"and {len(changes) - MOST_SHOWN} more keys"]
        raise UserError(
            f"{place} holds a run with another configuration: {', '.join(changes)}\nchoose another --workdir=DIR"
        )


def flatten(config: ConfigDict, prefix: str = "") -> dict:
    """Returns a configuration on one level: `{"train.batch_size": 100, ...}`."""
    flat = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, ConfigDict) else {f"{prefix}{key}": value}
    return flat
