"""metrics.jsonl: reading, cutting back to a checkpoint, appending.

A record of metrics.jsonl has `step`, `epoch`, `split` (`train`, `test`, `validation`), `loss` and `accuracy`; of
`train` also `learning_rate` and `images_per_second`. A run of several seeds writes one a seed, with its number in
`seed`; `images_per_second` then counts all seeds. Means over seeds are not stored but computed, by `last_records`.

A line of metrics.jsonl reaches the file in one write, and a resumed run first cuts the file back to its
checkpoint's step: no half lines, no step twice, none left out.
"""

import itertools
import json
import os
from pathlib import Path

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.directory import write_atomically
from attn_cnn_jax.runs.seeds import mean_record

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
