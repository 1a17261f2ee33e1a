"""A run directory: held by one training at a time, with the configuration that the user gave in `config.json`."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
from ml_collections import ConfigDict

from attn_cnn_jax.config import with_defaults
from attn_cnn_jax.data.sets import Fingerprint, differences
from attn_cnn_jax.errors import UserError, listed, shortened
from attn_cnn_jax.files import write_atomically

# Where data is, how it is read and where metrics go is no part of an experiment: a run may move to another machine.
MAY_CHANGE = ("dataset.data_dir", "dataset.path", "dataset.feed", "train.logger")
MAY_GROW = ("train.num_epochs",)  # a run may be given more epochs


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Creates the run directory and holds it for the block; removes it if it is new and no run began.

    Raises:
      UserError: if the directory cannot be written to, or another process holds it.
    """
    lock = filelock.FileLock(workdir / ".lock", blocking=False)
    new = [folder for folder in (workdir, *workdir.parents) if not os.path.lexists(folder)]
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
            with contextlib.suppress(OSError):  # a folder that is not empty stays
                (workdir / ".lock").unlink()
                for folder in new:  # inner first
                    folder.rmdir()
        lock.release()


def to_json(config: ConfigDict) -> str:
    """Returns a configuration as the text of `config.json`."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_json(text: str) -> ConfigDict:
    """Returns the configuration that `to_json` wrote; tuples come back as lists."""
    return ConfigDict(json.loads(text))


def read_config(workdir: Path) -> ConfigDict | None:
    """Returns the configuration that a run was given, as it was saved; None where there is no file.

    The one inside a checkpoint states what the network has: of a pruned run, the heads that are left.

    Raises:
      UserError: if `config.json` is damaged.
    """
    path = workdir / "config.json"
    try:
        if not isinstance(values := json.loads(path.read_bytes()), dict):
            raise ValueError("it holds no JSON object")
        return ConfigDict(values)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({shortened(error)}): restore it, or choose --workdir=DIR") from error


def claim(workdir: Path, config: ConfigDict) -> None:
    """Writes `config.json` for a new run, or one with more epochs; UserError, see `check_same`, for another run's."""
    before = read_config(workdir)
    check_same(workdir, before, config)
    if before is None or config.train.num_epochs > before.train.num_epochs:
        write_atomically(workdir / "config.json", to_json(config))


def check_same(place: Path | str, before: ConfigDict | None, config: ConfigDict) -> None:
    """Raises UserError, with the keys that differ, if the run in a place has another configuration.

    A number of epochs may be raised. `before` is None where there is no run.
    """
    if before is None:
        return
    old, new = map(saved, (with_defaults(before), config))
    differing = [key for key in sorted(old | new) if old.get(key) != new.get(key) and key not in MAY_CHANGE]
    differing = [key for key in differing if key not in MAY_GROW or not new[key] > old[key]]
    if differing:
        changes = [f"{key} ({old.get(key)!r} there, {new.get(key)!r} here)" for key in differing]
        raise UserError(
            f"{place} holds a run with another configuration: {listed(changes)}\nchoose another --workdir=DIR"
        )


def check_same_data(place: Path | str, before: Fingerprint | None, data: Fingerprint) -> None:
    """Raises UserError, saying what differs, if a run was trained on other data; `before` is None where not known."""
    if different := differences(before or {}, data):
        raise UserError(
            f"{place} was trained on other data: {different}\n"
            "set config.dataset.data_dir to the folder of that data, or choose another --workdir=DIR"
        )


def check_same_settings(place: Path | str, before: dict[str, Any] | None, here: dict[str, Any]) -> None:
    """Raises UserError, with what to set, if a run was trained with other settings of JAX; None where not known."""
    if differing := different_settings(before or {}, here):
        now = ", ".join(f"{name} is {here[name]} here" for name in differing)
        then = " ".join(f"{name}={before[name]}" for name in differing) if before else ""
        raise UserError(f"{place} was trained with {then}: {now}\nset these variables, or choose another --workdir=DIR")


def different_settings(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Returns the names of the settings that two runs both know and do not share."""
    return [name for name in a if name in b and a[name] != b[name]]


def saved(config: ConfigDict) -> dict:
    """Returns a configuration on one level, as `config.json` gives it back: with lists for tuples."""
    return flatten(from_json(to_json(config)))


def flatten(config: ConfigDict, prefix: str = "") -> dict:
    """Returns a configuration on one level: `{"train.batch_size": 100, ...}`."""
    flat = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, ConfigDict) else {f"{prefix}{key}": value}
    return flat
