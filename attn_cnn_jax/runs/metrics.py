"""metrics.jsonl: reads it, cuts it back to a checkpoint, appends to it.

A record has `step`, `epoch`, `split` (`train`, `test`, `validation`), `loss` (nats per image) and `accuracy` (0 to 1);
of `train` also `learning_rate` and `images_per_second`, of the others the integers `right` and `count`, and, where a
class has half as many images again as another, `balanced`, the mean over classes of the share that is right. Records of
a version before 0.4 lack `right` and `count`: no check of its program stood before such a number. A line reaches the
file in one write, and a resumed run first cuts the file back to the step of its checkpoint: no half lines, no step
twice, none left out.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import UnionType

from attn_cnn_jax.errors import UserError, command_line
from attn_cnn_jax.files import write_atomically

FILE = "metrics.jsonl"
NUMBER = int | float


def read_metrics(path: Path | str) -> list[dict]:
    """Returns the records of a metrics.jsonl, see `read_records`; those of imported weights have no `loss`."""
    return read_records(path, step=int, epoch=NUMBER, split=str, accuracy=NUMBER)


def read_records(path: Path | str, **fields: type | UnionType) -> list[dict]:
    """Returns the records of a file of JSON lines, if there is one; a last line that a crash cut off is left out.

    UserError for a line without these fields, of these types.
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
            if not all(isinstance(record[key], kind) for key, kind in fields.items()):
                raise ValueError("a field has another type")
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise UserError(f"{path} is damaged in line {n}: remove that line, or restore the file") from error
        records.append(record)
    return records


def last_records(workdir: Path) -> dict[str, dict]:
    """Returns the last record of every split, by the name of the split."""
    return {record["split"]: record for record in read_metrics(workdir / FILE)}


def test_record(workdir: Path, step: int) -> dict | None:
    """Returns the record with the test accuracy at a step; None where there is none that can be read."""
    with contextlib.suppress(UserError, OSError):  # a network is whole without it
        for record in reversed(read_metrics(workdir / FILE)):
            if record["split"] == "test" and record["step"] == step:
                return record
    return None


def is_checked(record: Mapping) -> bool:
    """Returns whether a test record comes from the evaluation that checks its program: from version 0.4 on."""
    return "right" in record and "count" in record


def accuracy_in_words(record: Mapping) -> str:
    """Returns `99.44% (353 of 355), mean of classes 98.20%`, as far as the record says so."""
    counts = f" ({record['right']:,} of {record['count']:,})" if is_checked(record) else ""
    by_class = f", mean of classes {record['balanced']:.2%}" if "balanced" in record else ""
    return f"{record['accuracy']:.2%}{counts}{by_class}"


def doubt(workdir: Path) -> str:
    """Returns a line where the last test record of a run is older than the check of its program; "" where it is not."""
    test = last_records(workdir).get("test")
    if test is None or is_checked(test):
        return ""
    return (
        f"its accuracy of {test['accuracy']:.2%} was measured before version 0.4, by a jaxlib that was not recorded "
        f"and can have been wrong: {command_line('evaluate', workdir, '--keep')} measures it again"
    )


def cut_back(path: Path, after_step: int) -> None:
    """Drops the records of steps after `after_step`, which a run that continues from there will write again."""
    kept = [record for record in read_records(path, step=int) if record["step"] <= after_step]
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept))


def append(path: Path, *records: dict) -> None:
    """Adds records, one per line, in a single write, and waits until they are on the disk."""
    with open(path, "ab") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records).encode())
        file.flush()
        os.fsync(file.fileno())
