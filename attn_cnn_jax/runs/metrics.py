"""metrics.jsonl: reads it, cuts it back to a checkpoint, appends to it.

A record of metrics.jsonl has `step`, `epoch`, `split` (`train`, `test`, `validation`), `loss` (nats per image) and
`accuracy` (0 to 1); of `train` also `learning_rate` and `images_per_second`.

A line of metrics.jsonl reaches the file in one write, and a resumed run first cuts the file back to the step of its
checkpoint: no half lines, no step twice, none left out.
"""

import json
from pathlib import Path
from types import UnionType

from attn_cnn_jax import files
from attn_cnn_jax.errors import UserError

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
        lines = Path(path).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    records = []
    for n, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
            needed = fields | {key: kind for key, kind in (optional or {}).items() if key in record}
            valid = all(isinstance(record[key], kind) for key, kind in needed.items())
        except (ValueError, TypeError, LookupError, RecursionError):
            valid, record = False, {}
        if not valid:
            raise UserError(f"{path} is damaged in line {n}: remove that line, or restore the file")
        records.append(record)
    return records


def last_records(workdir: Path) -> dict[str, dict]:
    """Returns the last record of every split, by the name of the split."""
    return {record["split"]: record for record in read_metrics(workdir / FILE)}


def test_record(workdir: Path, step: int) -> dict | None:
    """Returns the record with the test accuracy at a step; None where there is none that can be read."""
    try:
        records = read_metrics(workdir / FILE)
    except (UserError, OSError):  # a network is whole without it
        return None
    found = [record for record in records if record["split"] == "test" and record["step"] == step]
    return found[-1] if found else None


def cut_back(path: Path, after_step: int) -> None:
    """Drops the records of steps after `after_step`, which a run that continues from there will write again."""
    kept = [record for record in read_records(path, {"step": int}) if record["step"] <= after_step]
    files.write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept))


def append(path: Path, *records: dict) -> None:
    """Adds records, one per line, in a single write."""
    files.append(path, "".join(json.dumps(record) + "\n" for record in records).encode())
