"""What people wait for at a terminal: commands in fresh processes, the first time and again.

    python -m benchmarks.waits [--beside DIR] [--repeats 5] [--only heads page] [--json FILE]

The first time nothing is kept that a command of before has compiled or checked; "again" is the same command after it.
With `--beside`, the root of another version's source, each turn runs both, with this interpreter; ratios are medians of
the turns' ratios. Turns are few where a command takes long: `train` is run three times.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attn_cnn_jax.cli.arguments import at_least_one
from attn_cnn_jax.errors import UserError, exits_with_messages
from benchmarks.measure import median_ratio, seconds, table, write_json

ROOT = Path(__file__).parents[1]
RUN = "pretrained:digits"
COMMANDS = {
    "heads": ["heads", RUN],
    "convolution": ["convolution", RUN, "--out=out"],
    "figures": ["figures", RUN, "--out=out"],
    "page": ["page", RUN, "--out=page.html"],
    "page --help": ["page", "--help"],
    "train --help": ["train", "--help"],
    "mistyped key": ["train", "--config=digits", "--config.modl.num_layers=2"],
    "no such run": ["heads", "no_such_run"],
    "train": ["train", "--config=digits", "--workdir=run"],
}
FAILS = ("mistyped key", "no such run")
NOT_OF_USERS = "JAX_COMPILATION", "PYTHONDONTWRITEBYTECODE"  # programs, or Python's own, kept elsewhere or nowhere
MOST_TURNS = {"train": 3}


def wait(root: Path, command: Sequence[str], cache: Path, *, fails: bool) -> float:
    """Returns the seconds of a command of a version, in a new folder; UserError where its exit status is another."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(NOT_OF_USERS)}
    environment |= {"PYTHONPATH": str(root), "XDG_CACHE_HOME": str(cache), "JAX_PLATFORMS": "cpu"}
    line = [sys.executable, "-m", "attn_cnn_jax", *command]
    with tempfile.TemporaryDirectory() as folder:

        def run() -> None:
            done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if (done.returncode != 0) != fails:
                raise UserError(f"{' '.join(command)} of {root} ended with {done.returncode}: {done.stderr[-300:]}")

        return seconds(run)


def measure(name: str, roots: dict[str, Path], repeats: int) -> dict[str, list[float]]:
    """Returns the seconds of every turn by version, of the first time and again: `{"here": ..., "here again": ...}`."""
    times = {f"{version}{again}": [] for version in roots for again in ("", " again")}
    for _ in range(min(repeats, MOST_TURNS.get(name, repeats))):
        for version, root in roots.items():
            with tempfile.TemporaryDirectory() as cache:
                for again in ("", " again"):
                    taken = wait(root, COMMANDS[name], Path(cache), fails=name in FAILS)
                    times[f"{version}{again}"].append(taken)
    return times


@exits_with_messages
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, metavar="DIR", help="the source of another version")
    parser.add_argument("--repeats", type=at_least_one, default=5, help="turns, 5 by default")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write times, machine and versions")
    options = parser.parse_args(argv)
    roots = {"here": ROOT} | ({"beside": options.beside.resolve()} if options.beside else {})
    rows, kept = [], {}
    for name in options.only:
        times = kept[name] = measure(name, roots, options.repeats)
        row = {"command": name} | {version: statistics.median(found) for version, found in times.items()}
        row["again/first"] = median_ratio(times["here again"], times["here"])
        if options.beside:
            row["ratio"] = median_ratio(times["here"], times["beside"])
        rows.append(row)
        print(f"{name}: {row['here']:.2f} s", file=sys.stderr, flush=True)
    print(table(rows, list(rows[0])))
    write_json(options.json, {"seconds": kept, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
