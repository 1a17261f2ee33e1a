"""A run directory's small files: written whole or not at all, and used by one run at a time."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from attn_cnn_jax.config import with_defaults
from attn_cnn_jax.errors import UserError

# Where the data lies is no part of an experiment: a run may move to another machine.
MAY_CHANGE = ("dataset.data_dir",)
MOST_SHOWN = 5  # keys that differ, in a message


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file's content; a kill leaves the old or the new content, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:  # a full disk
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Creates the run directory and holds it; UserError if another process does. Without a run it goes again."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        file = open(workdir / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise UserError(
            f"cannot write to the run directory {workdir}: {error.strerror}; choose --workdir=DIR"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is training in {workdir}: wait for it, or choose --workdir=DIR") from None
        try:
            yield
        finally:
            if not (workdir / "config.json").exists():
                discard(workdir)


def discard(workdir: Path) -> None:
    """Removes a run directory in which no run began, unless something else lies in it."""
    with contextlib.suppress(OSError):
        (workdir / ".lock").unlink()
        workdir.rmdir()


def to_json(config: ConfigDict) -> str:
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_json(text: str) -> ConfigDict:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("it holds no JSON object")
    return ConfigDict(values)


def read_config(workdir: Path) -> ConfigDict | None:
    """The configuration of the run in a directory, None where there is none."""
    try:
        return from_json((workdir / "config.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{workdir / 'config.json'} is damaged ({error}): restore it, or choose --workdir=DIR"
        ) from error


def claim(workdir: Path, config: ConfigDict) -> None:
    """Writes `config.json`, or checks that it is the same run's; UserError with the keys that differ."""
    before = read_config(workdir)
    check_same(workdir, before, config)
    if before is None:
        write_atomically(workdir / "config.json", to_json(config))


def check_same(place: Path | str, before: ConfigDict | None, config: ConfigDict) -> None:
    """UserError, with the keys that differ, if what lies in a place has a configuration, and another one."""
    if before is None:
        return
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
    """`{"train.batch_size": 100, ...}`."""
    flat = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, ConfigDict) else {f"{prefix}{key}": value}
    return flat
