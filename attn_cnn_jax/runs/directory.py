"""A run directory: held by one training at a time, with the configuration of its run in `config.json`.

Where a run starts from another, `config.json` states what it really has, such as the heads that pruning left, and
`start.json` what changed: `given`, the values that the user gave in their place, and `pruned` or `reset`, the heads and
why.
"""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
from ml_collections import ConfigDict

from attn_cnn_jax.config import with_defaults
from attn_cnn_jax.data.fingerprint import Fingerprint, differences
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.files import read, write_atomically
from attn_cnn_jax.runs.seeds import seeds_of

# What the system says where a file system, often one of a network, has no locks.
WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
# Where data lies, how it is read and where metrics go is no part of an experiment: a run may move to another machine.
MAY_CHANGE = ("dataset.data_dir", "dataset.path", "dataset.feed", "train.logger")
# Taken from the data when a run begins; runs before 0.2.0 kept nothing of it.
FROM_DATA = ("dataset.mean", "dataset.std", "dataset.class_names", "dataset.has_validation")
MAY_GROW = ("train.num_epochs",)  # a run may be given more epochs
START = "start.json"
# What start.py resolves: a checkpoint has the heads that are left, config.json what was asked for.
RESOLVED = (("model", ("num_heads", "init")), ("start", ("heads", "new_head")))


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
        if new:
            discard(workdir, new)
        if error.errno in WITHOUT_LOCKS:
            raise UserError(
                f"the file system of the run directory {workdir} cannot lock files (flock): {error.strerror}\n"
                "mount it with locks, or choose --workdir=DIR on another"
            ) from error
        raise UserError(
            f"cannot write to the run directory {workdir}: {error.strerror or error}; choose --workdir=DIR"
        ) from error
    try:
        yield
    finally:
        if not (workdir / "config.json").exists():
            discard(workdir, new)
        lock.release()


def discard(workdir: Path, new: Sequence[Path]) -> None:
    """Removes what a run that did not begin has left: its lock, and those of the new folders, inner first, it made."""
    with contextlib.suppress(OSError):
        (workdir / ".lock").unlink(missing_ok=True)
    for folder in new:
        with contextlib.suppress(OSError):
            folder.rmdir()


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
        return from_json(read(path).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore it, or choose --workdir=DIR") from error


def read_given(workdir: Path) -> ConfigDict | None:
    """Returns the configuration of the run in a directory as the user gave it, None where there is none.

    Raises:
      UserError: if a file is damaged.
    """
    config = read_config(workdir)
    if config is None or not (workdir / START).exists():
        return config
    try:
        with config.ignore_type():
            config.update_from_flattened_dict(json.loads(read(workdir / START))["given"])
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(f"{workdir / START} is damaged ({error}): restore it, or choose --workdir=DIR") from error
    return config


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
        lengthen(workdir, config.train.num_epochs)
        return
    real, asked = (flatten(from_json(to_json(each))) for each in (config, given))
    is_new = not (workdir / START).exists()
    if changed := {key: value for key, value in asked.items() if real[key] != value}:
        # Where only config.json is lost, the checkpoint does not tell again which heads were removed, and why.
        found = {"pruned" if config.start.prune else "reset": list(heads)} if heads else known_heads(workdir)
        write_atomically(workdir / START, json.dumps({"given": changed} | found, indent=2))
    else:
        (workdir / START).unlink(missing_ok=True)  # of a run that was killed as it began
    try:
        write_atomically(workdir / "config.json", to_json(config))
    except BaseException:
        if is_new:
            (workdir / START).unlink(missing_ok=True)
        raise


def known_heads(workdir: Path) -> dict[str, list]:
    """Returns what `start.json` has of pruned or reset heads; {} where it has nothing that can be read."""
    try:
        content = json.loads(read(workdir / START))
        return {key: content[key] for key in ("pruned", "reset") if key in content}
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def lengthen(workdir: Path, num_epochs: int) -> None:
    """Raises the number of epochs in `config.json`, where it is smaller."""
    config = read_config(workdir)
    if config is not None and is_larger(num_epochs, flatten(config).get("train.num_epochs")):
        config.train.num_epochs = num_epochs
        write_atomically(workdir / "config.json", to_json(config))


def is_larger(new: Any, old: Any) -> bool:
    """Returns whether both are integers and the first is the larger one."""
    return isinstance(new, int) and isinstance(old, int) and new > old


def check_same(place: Path | str, before: ConfigDict | None, config: ConfigDict) -> None:
    """Checks that the run in a place, where there is one, has this configuration.

    Args:
      place: what to call it in a message.
      before: the configuration found there, as it was saved; None where there is none.
      config: of the run that would train there.

    Raises:
      UserError: with the keys that differ, but for a number of epochs that was raised; or for a run of several seeds,
        which can only be read.
    """
    if before is None:
        return
    if len(seeds := seeds_of(before)) > 1:
        raise UserError(
            f"{place} holds a run of {len(seeds)} seeds, which version 0.1.0 trained together: it can be read, but not "
            f"continued\ntrain one run directory per seed: attn-cnn train --seeds={seeds[0]}-{seeds[-1]}"
        )
    old, new = (flatten(from_json(to_json(each))) for each in (with_defaults(before), config))
    ignored = (*MAY_CHANGE, *(key for key in FROM_DATA if not old.get(key) or not new.get(key)))
    differing = [key for key in sorted(old | new) if old.get(key) != new.get(key) and key not in ignored]
    differing = [key for key in differing if key not in MAY_GROW or not is_larger(new.get(key), old.get(key))]
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


def flatten(config: ConfigDict, prefix: str = "") -> dict:
    """Returns a configuration on one level: `{"train.batch_size": 100, ...}`."""
    flat = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, ConfigDict) else {f"{prefix}{key}": value}
    return flat
