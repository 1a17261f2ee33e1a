"""metrics.jsonl, TensorBoard, and progress on the terminal.

A record of metrics.jsonl has `step`, `epoch`, `split` (`train`, `test`, `validation`), `loss` and `accuracy`; of
`train` also `learning_rate` and `images_per_second`. A run of several seeds writes one a seed, with its number in
`seed`; `images_per_second` then counts all seeds. Means over seeds are not stored but computed, by `last_records`.

A line of metrics.jsonl reaches the file in one write, and a resumed run first cuts the file back to its
checkpoint's step: no half lines, no step twice, none left out.
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training.files import write_atomically
from attn_cnn_jax.training.seeds import mean_record

NUMBER = int | float


def read_metrics(path: Path | str) -> list[dict]:
    """The records of a metrics.jsonl, of imported weights without `loss`; see `read_records`."""
    fields = {"step": int, "epoch": NUMBER, "split": str, "accuracy": NUMBER}
    return read_records(path, fields, {"loss": NUMBER})


def read_records(path: Path | str, fields: dict[str, type], optional: dict[str, type] | None = None) -> list[dict]:
    """The records of a file of JSON lines; a last line that was cut off by a crash is left out.

    Args:
      path: of the file; where there is none, there are no records.
      fields: what every record must have, and of which type.
      optional: of which type other fields are where a record has them.

    Raises:
      UserError: for a line that is no such record.
    """
    try:
        lines = Path(path).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    kinds = fields, optional or {}
    return [parse(path, n, line, *kinds) for n, line in enumerate(lines, start=1) if line.endswith(b"\n")]


def parse(path: Path | str, n: int, line: bytes, fields: dict[str, type], optional: dict[str, type]) -> dict:
    """A line as a record; UserError, naming the line, if it is none."""
    try:
        record = json.loads(line)
        needed = fields | {key: kind for key, kind in optional.items() if key in record}
        if all(isinstance(record[key], kind) for key, kind in needed.items()):
            return record
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise UserError(f"{path} is damaged in line {n}: remove that line, or restore the file")


def last_records(workdir: Path) -> dict[str, dict]:
    """The last record of every split, by the split's name; of several seeds the mean (seeds.mean_record)."""
    return {record["split"]: record for record in mean_records(read_metrics(workdir / "metrics.jsonl"))}


def mean_records(records: list[dict]) -> list[dict]:
    """The records of every moment as one, `seeds.mean_record`: those of a single seed as they are."""
    by_moment = itertools.groupby(records, lambda record: (record["split"], record["step"]))
    return [mean_record(list(group)) for _, group in by_moment]


def cut_back(path: Path, after_step: int) -> None:
    """Drops the records of steps after `after_step`, which a run that goes on from there will write again."""
    kept = [record for record in read_records(path, {"step": int}) if record["step"] <= after_step]
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept))


def append(path: Path, *records: dict) -> None:
    """Adds records in a single write."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        while lines:  # a write that a full disk cuts short is followed by one that says why
            lines = lines[os.write(file, lines) :]
    finally:
        os.close(file)


class MetricsWriter:
    """Appends records to `metrics.jsonl` and, if asked, to TensorBoard event files in the same folder."""

    def __init__(self, workdir: Path, *, after_step: int, tensorboard: bool):
        """Opens the files of a run that goes on after `after_step` (0: a new run)."""
        self._path = workdir / "metrics.jsonl"
        cut_back(self._path, after_step)
        self._board = None
        if tensorboard:
            from tensorboardX import SummaryWriter

            self._board = SummaryWriter(str(workdir), purge_step=after_step + 1)

    def write(self, *records: dict) -> None:
        """Writes the records of one moment: `step`, `epoch`, `split`, of several seeds `seed`, and numbers."""
        append(self._path, *records)
        if self._board is not None:
            for record in records:
                seed = f"/seed_{record['seed']}" if "seed" in record else ""
                for name, value in record.items():
                    if name not in ("step", "epoch", "split", "seed"):
                        self._board.add_scalar(f"{record['split']}/{name}{seed}", value, record["step"])

    def write_pictures(self, step: int, pictures: dict[str, np.ndarray]) -> None:
        """Shows `(height, width, 3)` uint8 pictures in TensorBoard, by name."""
        if self._board is not None:
            for name, picture in pictures.items():
                self._board.add_image(f"figures/{name}", picture, step, dataformats="HWC")

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


class Progress:
    """A bar with rate and time left on a terminal; elsewhere one plain line a report."""

    def __init__(self, step: int, total_steps: int, batch_size: int):
        self._first, self._total, self._batch_size = step, total_steps, batch_size
        self._started = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=total_steps * batch_size,
                initial=step * batch_size,
                unit=" pictures",
                unit_scale=True,
                dynamic_ncols=True,
                mininterval=0.3,
            )

    def advance(self, steps: int) -> None:
        if self._bar is not None:
            self._bar.update(steps * self._batch_size)

    def report(self, record: dict) -> None:
        """Says how training stands after a record of metrics, or after the mean of several seeds'."""
        text = f"{record['split']} {in_words(record)}"
        if self._bar is not None:
            if record["split"] == "train":
                self._bar.set_description_str(f"epoch {record['epoch']:.1f} {text}")
            else:
                self._bar.write(f"epoch {record['epoch']:.0f}: {text}")
            return
        step = record["step"]
        done = max(1, step - self._first)
        left = (time.monotonic() - self._started) / done * (self._total - step)
        rate = f", {record['images_per_second']:.0f} pictures/s" if "images_per_second" in record else ""
        print(
            f"epoch {record['epoch']:.2f} step {step}/{self._total}: {text}{rate}, {clock(left)} left",
            flush=True,
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def in_words(record: dict) -> str:
    """`loss 0.1234 accuracy 97.50%`; of several seeds the mean, `+-` and the standard deviation."""
    loss, accuracy = f"loss {record['loss']:.4f}", f"accuracy {record['accuracy']:.2%}"
    if "seeds" in record:
        loss, accuracy = f"{loss} +- {record['loss_std']:.4f}", f"{accuracy} +- {record['accuracy_std']:.2%}"
    return f"{loss} {accuracy}"


def clock(seconds: float) -> str:
    """`95 -> "1:35"`, `4000 -> "1:06:40"`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
