"""A run directory: held by one training at a time, with the configuration that the user gave in `config.json`."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
from ml_collections import ConfigDict

from attn_cnn_jax.config.base import flatten, with_defaults
from attn_cnn_jax.errors import UserError, listed, shortened
from attn_cnn_jax.files import write_atomically

# Where data is, how it is read and where metrics go is no part of an experiment: a run may move to another machine.
MAY_CHANGE = ("dataset.data_dir", "dataset.path", "dataset.feed", "train.logger")
MAY_GROW = ("train.num_epochs",)  # a run may be given more epochs


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Creates the run directory and holds it for the block; removes it if it is new and no run began.

    UserError if the directory cannot be written to, or another process holds it.
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
    """Returns the configuration that a run was given; None where there is no file, UserError where it is damaged.

    The one inside a checkpoint states what the network has: of a pruned run, the heads that are left.
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
    """Writes `config.json` for a new run, or one with more epochs; UserError, see `differing_config`, for another's."""
    before = read_config(workdir)
    refuse_other_run(workdir, "with another configuration", differing_config(before, config) if before else [])
    if before is None or config.train.num_epochs > before.train.num_epochs:
        write_atomically(workdir / "config.json", to_json(config))


def refuse_other_run(place: Path | str, what: str, differing: Sequence[str]) -> None:
    """Raises UserError, naming what differs, if anything does: a run in a place is not the one that is asked for."""
    if differing:
        remedy = "make them the same, or choose another --workdir=DIR"
        raise UserError(f"{place} holds a run {what}: {listed(differing)}\n{remedy}")


def differing_config(before: ConfigDict, config: ConfigDict) -> list[str]:
    """Returns in which keys a configuration is not that of a run; it may read its data elsewhere, for more epochs."""
    # As `config.json` gives them back: with lists for tuples.
    old, new = (flatten(from_json(to_json(each))) for each in (with_defaults(before), config))
    may_differ = {*MAY_CHANGE, *(key for key in MAY_GROW if new[key] > old[key])}
    old, new = ({key: each[key] for key in each if key not in may_differ} for each in (old, new))
    return differing(old, new)


def differing(one: Mapping[str, Any], other: Mapping[str, Any], names: Sequence[str] = ("there", "here")) -> list[str]:
    """Returns `key (1 there, 2 here)` for every value that two mappings do not share."""
    keys = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
    return [f"{key} ({one.get(key)!r} {names[0]}, {other.get(key)!r} {names[1]})" for key in keys]
