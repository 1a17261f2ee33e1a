"""Mutated CIFAR archives and random configuration overrides: the outcome is success or a UserError of a line or two.

    python -m robustness.fuzz [--minutes 10] [--seed 0] [--json FILE]

Half of the time each. A failure is printed with the number of its case: the same seed gives the same cases.
"""

import argparse
import gzip
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import complete
from attn_cnn_jax.data.preparation import archives as archive
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.directory import flatten
from benchmarks.measure import table, write_json
from tests.support import cifar_archives

SECONDS = 20  # that a single case may take
VALUES = (
    "",
    "0",
    "1",
    "-1",
    "1e400",
    "nan",
    "None",
    "True",
    "()",
    "(1,)",
    "((1,1),)",
    "[]",
    "{}",
    "'",
    "\0",
    "9" * 400,
)
NAMES = (b"../../x", b"/x", b"\xff\xfe", b"a" * 99, b"cifar-100-binary/train.bin", b"")


def archive_case(folder: Path, generator: random.Random) -> None:
    name, kind = generator.choice(list(cifar_archives.FOLDERS))
    path = cifar_archives.write(folder / "a.tar.gz", name, kind, seed=generator.randrange(10))
    layer = generator.choice(("file", "tar", "tar", "member", "member"))
    if layer == "file":
        path.write_bytes(mutated(path.read_bytes(), generator))
    elif layer == "tar":
        path.write_bytes(gzip.compress(mutated_headers(gzip.decompress(path.read_bytes()), generator), 1))
    else:

        def change(files):
            victim = generator.choice(sorted(files))
            files[victim] = mutated(files[victim], generator)

        cifar_archives.write(path, name, kind, change=change)
    if generator.random() < 0.1:
        path.write_bytes(gzip.compress(path.read_bytes(), 1))
    archive.read(path, name)


def mutated(content: bytes, generator: random.Random) -> bytes:
    """Cut off, or with some bytes changed, removed, repeated or put in, mostly near the start, where structure is."""
    content = bytearray(content)
    if generator.random() < 0.15:
        return bytes(content[: generator.randrange(len(content) + 1)])
    for _ in range(generator.choice((1, 1, 2, 8, 64))):
        reach = generator.choice((40, 600, len(content)))
        at = generator.randrange(max(1, min(reach, len(content))))
        size = generator.choice((1, 1, 4, 200))
        new = generator.choice((b"", generator.randbytes(size), bytes(content[at : at + size]) * 2, b"\xff" * size))
        content[at : at + generator.choice((0, len(new)))] = new
    return bytes(content)


def mutated_headers(tar: bytes, generator: random.Random) -> bytes:
    """A tar file with fields of its headers changed, their checksums put right most of the time."""
    tar = bytearray(tar)
    starts = [at for at in range(0, len(tar), 512) if tar[at + 257 : at + 262] == b"ustar"]
    for start in generator.sample(starts, min(len(starts), generator.randint(1, 3))):
        at, size = generator.choice(((0, 100), (124, 12), (156, 1), (157, 100), (345, 155), (100, 8), (257, 8)))
        new = generator.choice((generator.choice(NAMES), b"%o" % generator.randrange(8**11), generator.randbytes(size)))
        tar[start + at : start + at + size] = new[:size].ljust(size, b"\0")
        if generator.random() < 0.8:
            tar[start + 148 : start + 156] = b" " * 8
            tar[start + 148 : start + 156] = b"%06o\0 " % sum(tar[start : start + 512])
    return bytes(tar)


def config_case(folder: Path, generator: random.Random) -> None:
    name, overrides = generator.choice(("digits", "learned_rel_content", "resnet18")), []
    known = sorted(flatten(load_config(name)))
    for _ in range(generator.choice((1, 1, 2, 4))):
        key = generator.choice(known)
        if generator.random() < 0.15:
            at = generator.randrange(len(key) + 1)
            key = key[:at] + generator.choice((".", "x", "[0]", "__class__", "é", " ")) + key[at:]
        value = generator.choice(
            (generator.choice(VALUES), str(generator.randint(-9, 99)), str(generator.uniform(-9, 9)))
        )
        overrides.append(f"--config.{key}={value}")
    complete(load_config(name, overrides))


def fuzz(case: Callable[[Path, random.Random], None], seconds: float, seed: int) -> dict:
    """Tries cases for so long; a row of the table."""
    row = {"cases": 0, "accepted": 0, "refused": 0, "failed": 0, "slowest s": 0.0}
    ends = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < ends:
            started, outcome, why = time.process_time(), "accepted", ""
            try:
                case(Path(folder), random.Random(f"{seed} {row['cases']}"))
            except UserError as error:
                outcome, lines = "refused", len(str(error).splitlines())
                why = f"{lines} lines: {str(error)!r}" if lines > 2 else ""
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            took = time.process_time() - started
            if took >= SECONDS:
                why = why or f"took {took:.0f} s"
            if why:
                print(f"{case.__name__} {row['cases']}: {why}"[:400], file=sys.stderr)
            row["slowest s"] = max(row["slowest s"], took)
            row["failed" if why else outcome] += 1
            row["cases"] += 1
    return row


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="also write the table there")
    options = parser.parse_args(argv)
    cases = {"archives": archive_case, "configurations": config_case}
    rows = [{"fuzzed": name} | fuzz(case, options.minutes * 30, options.seed) for name, case in cases.items()]
    print(f"seed {options.seed}", table(rows, list(rows[0])), sep="\n")
    write_json(options.json, {"benchmark": "fuzz", "seed": options.seed, "rows": rows})
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
