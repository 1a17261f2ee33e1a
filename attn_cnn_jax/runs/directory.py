"""A run directory: held by one training at a time, with the configuration of its run in `config.json`.

Where a run starts from another, `config.json` states what it really has, such as the heads that pruning left, and
`start.json` what changed: `given`, the values that the user gave in their place, and `pruned` or `reset`, the heads and
why.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
from ml_collections import ConfigDict

from attn_cnn_jax.config import with_defaults
from attn_cnn_jax.data.sets import Fingerprint, differences
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.files import write_atomically

# Where data is, how it is read and where metrics go is no part of an experiment: a run may move to another machine.
MAY_CHANGE = ("dataset.data_dir", "dataset.path", "dataset.feed", "train.logger")
MAY_GROW = ("train.num_epochs",)  # a run may be given more epochs
START = "start.json"
# What start.py resolves: a checkpoint has the heads that are left, config.json what was asked for.
RESOLVED = (("model", ("num_heads", "init")), ("start", ("heads",)))


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
        return from_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore it, or choose --workdir=DIR") from error


def read_given(workdir: Path) -> ConfigDict | None:
    """Returns the configuration of the run in a directory as the user gave it, None where there is none."""
    config = read_config(workdir)
    if config is not None:
        with config.ignore_type():
            config.update_from_flattened_dict(read_start(workdir).get("given", {}))
    return config


def read_start(workdir: Path) -> dict[str, Any]:
    """Returns the content of `start.json`, {} where there is none; UserError if it is damaged."""
    path = workdir / START
    try:
        return dict(json.loads(path.read_bytes())) if path.exists() else {}
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore it, or choose --workdir=DIR") from error


def claim(workdir: Path, config: ConfigDict, *, given: ConfigDict | None = None, heads: Sequence[dict] = ()) -> None:
    """Writes `config.json` unless it is there; UserError, see `check_same`, if it is another run's.

    Args:
      workdir: the run directory.
      config: of the run.
      given: the configuration as the user gave it, where starting from another run changed it.
      heads: those that were pruned or reset, for `start.json`.
    """
    given = config if given is None else given
    before = read_given(workdir)
    check_same(workdir, before, given)
    if before is not None:
        if config.train.num_epochs > before.train.num_epochs:
            longer = read_config(workdir) or before
            longer.train.num_epochs = config.train.num_epochs
            write_atomically(workdir / "config.json", to_json(longer))
        return
    real, asked = (flatten(from_json(to_json(each))) for each in (config, given))
    if changed := {key: value for key, value in asked.items() if real[key] != value}:
        # Where only config.json is lost, the checkpoint does not tell again which heads were removed, and why.
        found = {"pruned" if config.start.prune else "reset": list(heads)} if heads else read_start(workdir)
        write_atomically(workdir / START, json.dumps(found | {"given": changed}, indent=2))
    else:
        (workdir / START).unlink(missing_ok=True)  # of a run that was killed as it began
    write_atomically(workdir / "config.json", to_json(config))


def check_same(place: Path | str, before: ConfigDict | None, config: ConfigDict) -> None:
    """Checks that the run in a place, where there is one, has this configuration.

    Args:
      place: what to call it in a message.
      before: the configuration found there, as it was saved; None where there is none.
      config: of the run that would train there.

    Raises:
      UserError: with the keys that differ, but for a number of epochs that was raised.
    """
    if before is None:
        return
    old, new = (flatten(from_json(to_json(each))) for each in (with_defaults(before), config))
    differing = [key for key in sorted(old | new) if old.get(key) != new.get(key) and key not in MAY_CHANGE]
    differing = [key for key in differing if key not in MAY_GROW or not new[key] > old[key]]
    if differing:
        changes = [f"{key} ({old.get(key)!r} there, {new.get(key)!r} here)" for key in differing]
        raise UserError(
            f"{place} holds a run with another configuration: {listed(changes)}\nchoose another --workdir=DIR"
        )


def keep_resolved(before: ConfigDict, config: ConfigDict) -> None:
    """Gives `before`, out of a checkpoint, the values of `config` that start.py resolves: these cannot be compared.

    Of a run that started from another, only the checkpoint knows which heads were removed or reset.
    """
    if not config.start.run:
        return
    for part, keys in RESOLVED:
        before[part] = before[part].to_dict() | {key: config[part][key] for key in keys if key in config[part]}


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


def flatten(config: ConfigDict, prefix: str = "") -> dict:
    """Returns a configuration on one level: `{"train.batch_size": 100, ...}`."""
    flat = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, ConfigDict) else {f"{prefix}{key}": value}
    return flat
