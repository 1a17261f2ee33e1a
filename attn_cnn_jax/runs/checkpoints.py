"""Orbax checkpoints: written in the background, atomic, checksummed, with the configuration inside.

A checkpoint is the folder `checkpoints/STEP` with the parts

- `network`: parameters and running statistics; `optimizer`: its state;
- `config`: of the run; `data`: fingerprint of what it trains on; `settings`: those of JAX that shape the numbers;
- `environment`: versions and machine that it was made by, see environment.py; absent before version 0.4;
- `progress`: the metrics of the steps since the last training record;
- `validation`: its `accuracy`, empty without a validation split;
- `checksums`: the CRC-32 of each of the others.
"""

import contextlib
import copy
import dataclasses
import json
import numbers
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from ml_collections import ConfigDict
from orbax.checkpoint.checkpoint_managers import preservation_policy

from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.data.sets import Fingerprint
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.models.variables import Arrays, join, split
from attn_cnn_jax.runs.saved import Saved, checksum, checksum_of_text

# Settings of JAX outside the configuration that change a run's numbers.
SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_random_seed_offset",
    "jax_threefry_partitionable",
)


class Damaged(UserError):
    """A checkpoint that lacks a file, or is not what was saved."""


class TrainState(NamedTuple):
    """All that changes while a network learns; replicated on every device."""

    step: jax.Array  # scalar int32, number of finished steps
    parameters: Arrays
    statistics: Arrays  # running statistics of batch norm
    optimizer: optax.OptState


def settings() -> dict[str, Any]:
    """Returns the settings of JAX that shape a run's numbers, by the names of their environment variables."""
    return {name.upper(): getattr(jax.config, name) for name in SETTINGS}


def folder_of(workdir: Path) -> Path:
    """Returns the folder of the checkpoints without links: TensorStore would resolve `link/..` by its letters."""
    return Path(os.path.realpath(workdir / "checkpoints"))


def check_folder(workdir: Path) -> None:
    """Raises UserError where Orbax or TensorStore would take the path for a pattern or another place."""
    folder = folder_of(workdir)
    if wrong := next((text for text in ("\\", "*", "?", "[", "gs:/") if text in str(folder)), ""):
        raise UserError(f"{folder.parent}: checkpoints cannot be saved below {wrong!r}; choose another --workdir=DIR")


@dataclasses.dataclass
class Kept(preservation_policy.PreservationPolicy):
    """Keeps the last few checkpoints, the best by validation accuracy, and step 0 of a run that began with another."""

    workdir: Path
    config: ConfigDict

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        unfinished = {each.step: each.metrics["accuracy"] for each in checkpoints if each.metrics}
        steps = [each.step for each in checkpoints]
        kept = {*steps[-self.config.checkpoint.keep_last :], best_step(self.workdir, unfinished)}
        return [step in kept or (step == 0 and self.config.start.run != "") for step in steps]


@contextlib.contextmanager
def saving(workdir: Path, config: ConfigDict) -> Iterator[ocp.CheckpointManager]:
    """Opens the checkpoints of a run for writing, see `Kept`; at the end all are complete, or UserError is raised.

    Of several processes all open it.
    """
    options = ocp.CheckpointManagerOptions(
        preservation_policy=Kept(workdir, config), save_interval_steps=1, cleanup_tmp_directories=True
    )
    with saving_errors(workdir):
        checkpoints = ocp.CheckpointManager(folder_of(workdir), options=options)
    try:
        yield checkpoints
        finish(checkpoints)
    finally:
        with contextlib.suppress(Exception):  # after an error, closing raises it again
            checkpoints.close()


@contextlib.contextmanager
def saving_errors(place: Path) -> Iterator[None]:
    """Raises UserError for whatever goes wrong in saving: Orbax raises many types for a full disk."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"cannot save a checkpoint in {place}: {shortened(error, 500)}\n"
            "the same command continues from the last checkpoint there"
        ) from error


def finish(checkpoints: ocp.CheckpointManager) -> None:
    """Waits for what is being saved in the background; raises UserError if that fails."""
    with saving_errors(Path(checkpoints.directory)):
        checkpoints.wait_until_finished()


def save(
    checkpoints: ocp.CheckpointManager,
    step: int,
    state: TrainState,
    config: ConfigDict,
    progress: dict,
    accuracy: float | None = None,
    data: Fingerprint | None = None,
    environment: Mapping[str, Any] | None = None,
) -> None:
    """Starts to save a checkpoint in the background; it appears under its step once it is complete.

    The caller may change what it gave afterwards; `accuracy` is that on the validation split. UserError if this or the
    previous one cannot be saved.
    """
    if checkpoints.latest_step() == step:
        return
    arrays = {"network": network(state), "optimizer": state.optimizer}
    # Orbax holds on to arrays itself, donated ones too; plain values it reads only as it writes them.
    plain = {"config": config.to_dict(), "progress": progress, "settings": settings(), "data": data or {}}
    plain["environment"] = dict(environment or {})
    plain = copy.deepcopy(plain) | {"validation": {} if accuracy is None else {"accuracy": accuracy}}
    checksums = {part: checksum(tree) for part, tree in arrays.items()}
    checksums |= {part: checksum_of_text(value) for part, value in plain.items()}
    parts = {part: ocp.args.StandardSave(tree) for part, tree in arrays.items()}
    parts |= {part: ocp.args.JsonSave(value) for part, value in (plain | {"checksums": checksums}).items()}
    with saving_errors(Path(checkpoints.directory)):
        checkpoints.save(step, metrics=plain["validation"] or None, args=ocp.args.Composite(**parts))


def steps_in(workdir: Path) -> list[int]:
    """Returns the steps of the finished checkpoints of a run, newest first; [] where there is none."""
    try:
        with os.scandir(workdir / "checkpoints") as entries:
            return sorted((int(entry.name) for entry in entries if entry.name.isdecimal()), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []


def restore(workdir: Path, step: int, like: TrainState) -> tuple[TrainState, dict]:
    """Returns the state at a step, placed as `like` is, and the `progress` saved with it; raises Damaged."""
    restored = read_arrays(workdir, step, "network", network(like))
    optimizer = read_arrays(workdir, step, "optimizer", like.optimizer)
    number = jax.device_put(jnp.full(like.step.shape, step, jnp.int32), like.step.sharding)
    return TrainState(number, **restored, optimizer=optimizer), read_plain(workdir, step, "progress")


def network(state: TrainState) -> dict[str, Arrays]:
    """Returns the part of a state that makes predictions, as checkpoints keep it."""
    return {"parameters": state.parameters, "statistics": state.statistics}


def read_arrays(workdir: Path, step: int, part: str, like: Any) -> Any:
    """Returns one part of a checkpoint, `network` or `optimizer`; each of several processes reads for itself.

    `like` gives shapes, types and placement: those saved are not asked for, as no checksum watches them. Raises Damaged
    if anything is wrong with it, which not every flipped byte makes Orbax notice.
    """
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=here, active_processes={here})
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)

    def read(folder: Path) -> Any:
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as reader:
            abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
            try:
                return reader.restore(folder, args=ocp.args.StandardRestore(abstract))
            except ValueError as error:  # of other names or shapes too, as when the code of an own encoding has changed
                raise ValueError(f"or is not that of its config: {error}") from error

    return checked(workdir, step, part, read, checksum)


def read_plain(workdir: Path, step: int, part: str) -> dict:
    """Returns one part of a checkpoint that is JSON, such as `config`; raises Damaged as `read_arrays` does."""
    return checked(workdir, step, part, read_json, checksum_of_text)


def read_json(folder: Path) -> dict:
    """Returns the JSON object that Orbax wrote in a folder."""
    return dict(json.loads((folder / "metadata").read_bytes()))


def checked(workdir: Path, step: int, part: str, read: Callable[[Path], Any], sum_of: Callable[[Any], int]) -> Any:
    """Returns what `read` makes of a part's folder; raises Damaged if it fails, or the checksum saved is another."""
    folder, reading = folder_of(workdir) / str(step), part
    try:
        value, reading = read(folder / part), "checksums"
        expected = read_json(folder / reading).get(part)
        reason = f"the checksum of its {part} is not the one saved" if sum_of(value) != expected else ""
    except Exception as error:  # Orbax raises any type, a bare Exception too
        value, reason = None, f"its {reading} cannot be read, {shortened(error)}"
    if reason:
        raise Damaged(f"the checkpoint of step {step} in {workdir} is damaged: {reason}")
    return value


def read_network(workdir: Path, step: Any, upgraded: Callable[[ConfigDict], ConfigDict]) -> Saved:
    """Returns the network of a checkpoint: the latest, the best by validation accuracy, or that of a step.

    `upgraded` makes the saved configuration one of today, or raises UserError. A training that continues there may
    remove what is being read: then the newer ones are looked at again. UserError if there is no such checkpoint, or it
    is damaged.
    """
    known = steps_in(workdir)
    if not known:
        raise UserError(f"{workdir} has no checkpoint yet")
    number = known[0] if step == "latest" else best_step(workdir) if step == "best" else step
    if step == "best" and number is None:
        raise UserError(f"{workdir} has no best checkpoint: train with config.dataset.num_validation above 0")
    if isinstance(number, bool) or not isinstance(number, numbers.Integral) or number not in known:
        raise UserError(f"step={step!r}: {workdir} has checkpoints of steps {', '.join(map(str, reversed(known)))}")
    number = int(number)
    try:
        config = upgraded(ConfigDict(read_plain(workdir, number, "config")))
        skeleton, parameters, statistics = split(abstract_model(config.model))
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        like = {"parameters": parameters, "statistics": statistics}
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), like)
        network = join(skeleton, **read_arrays(workdir, number, "network", like))
        return number, config, network, read_plain(workdir, number, "data")
    except Damaged:
        if known == steps_in(workdir):
            raise
    return read_network(workdir, step, upgraded)


def saved_config(workdir: Path) -> ConfigDict | None:
    """Returns the configuration inside the newest intact checkpoint, as saved; None where there is none."""
    for step in steps_in(workdir):
        with contextlib.suppress(Damaged):
            return ConfigDict(read_plain(workdir, step, "config"))
    return None


def best_step(workdir: Path, unfinished: Mapping[int, float] | None = None) -> int | None:
    """Returns the step with the best validation accuracy, also of those not complete; None where none has one."""
    accuracies = dict(unfinished or {})
    for step in steps_in(workdir):
        with contextlib.suppress(Damaged, KeyError):
            accuracies[step] = read_plain(workdir, step, "validation")["accuracy"]
    return max(accuracies, key=accuracies.__getitem__, default=None)


def set_aside(workdir: Path, step: int) -> None:
    """Moves a damaged checkpoint into `damaged/` of the run directory."""
    aside = workdir / "damaged" / f"{step}-{time.time_ns()}"
    aside.parent.mkdir(exist_ok=True)
    os.rename(folder_of(workdir) / str(step), aside)
