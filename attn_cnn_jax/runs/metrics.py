"""metrics.jsonl: reads it, cuts it back to a checkpoint, appends to it.

A record of metrics.jsonl has `step`, `epoch`, `split` (`train`, `test`, `validation`), `loss` (nats per picture) and
`accuracy` (0 to 1); of `train` also `learning_rate` and `images_per_second`. Runs of several seeds, which version
0.1.0 wrote, have one record per seed, with its number in `seed`: see seeds.py.

A line of metrics.jsonl reaches the file in one write, and a resumed run first cuts the file back to the step of its
checkpoint: no half lines, no step twice, none left out.
"""

import itertools
import json
from pathlib import Path
from types import UnionType

from attn_cnn_jax import files
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.seeds import mean_record

FILE = "metrics.jsonl"
NUMBER = int | float
Types = dict[str, type | UnionType]


def read_metrics(path: Path | str) -> list[dict]:
    """Returns the records of a metrics.jsonl, see `read_records`; those of imported weights have no `loss`."""
    fields = {"step": int, "epoch": NUMBER, "split": str, "accuracy": NUMBER}
    return read_records(path, fields, {"loss": NUMBER})


def read_records(path: Path | str, fields: Types, optional: Types | None = None) -> list[dict]:
    """Returns the records of a file of JSON lines; a last line that a crash cut off is left out.

    Args:
      path: the file; where there is none, there are no records.
      fields: the fields that every record must have, and their types.
      optional: fields that a record may have, and their types.

    Raises:
      UserError: for a line that is no such record.
    """
    try:
        lines = files.read(path).splitlines(keepends=True)
    except FileNotFoundError:
        return []
    kinds = fields, optional or {}
    return [parse(path, n, line, *kinds) for n, line in enumerate(lines, start=1) if line.endswith(b"\n")]


def parse(path: Path | str, n: int, line: bytes, fields: Types, optional: Types) -> dict:
    """Returns a line as a record; UserError, naming line `n`, if it is none."""
    try:
        record = json.loads(line)
        needed = fields | {key: kind for key, kind in optional.items() if key in record}
        if all(isinstance(record[key], kind) for key, kind in needed.items()):
            return record
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise UserError(f"{path} is damaged in line {n}: remove that line, or restore the file")


def last_records(workdir: Path) -> dict[str, dict]:
    """Returns the last record of every split, by the name of the split."""
    return {record["split"]: record for record in mean_records(read_metrics(workdir / FILE))}


def mean_records(records: list[dict]) -> list[dict]:
    """Returns one record per split and step: as it is, or the mean over seeds (`seeds.mean_record`)."""
    by_moment = itertools.groupby(records, lambda record: (record["split"], record["step"]))
    return [mean_record(list(group)) for _, group in by_moment]


def cut_back(path: Path, after_step: int) -> None:
    """Drops the records of steps after `after_step`, which a run that goes on from there will write again."""
    kept = [record for record in read_records(path, {"step": int}) if record["step"] <= after_step]
    files.write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept))


def append(path: Path, *records: dict) -> None:
    """Adds records, one per line, in a single write."""
    files.append(path, "".join(json.dumps(record) + "\n" for record in records).encode())
