"""Attacks real training processes and checks that nothing is lost; prints a table.

    python -m robustness [--only NAME ...] [--times N] [--seed N]

Takes at most 15 minutes on two cores. Exit status 1 if anything was lost.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tabulate import tabulate

from robustness.attacks import ATTACKS, EPOCHS, EPOCHS_OF_KILLS, Attack
from robustness.processes import Trainer

COLUMNS = ("attack", "tried", "survived", "lost", "seconds", "remarks")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, metavar="NAME", help=f"of {', '.join(ATTACKS)}")
    parser.add_argument("--times", type=int, help="how often each, in place of the numbers in attacks.py")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--jobs", type=int, default=2, help="attacks at the same time (2)")
    options = parser.parse_args(argv)
    chosen = options.only or list(ATTACKS)
    with tempfile.TemporaryDirectory(prefix="robustness_") as name:
        folder = Path(name)
        trainer = Trainer(folder / "cache", folder / "references")
        print("training the undisturbed runs", flush=True)
        for length, processes in ((EPOCHS, 1), (EPOCHS_OF_KILLS, 1), (EPOCHS, 2)):
            trainer.reference(length, processes)
        tasks = []
        with ThreadPoolExecutor(options.jobs) as pool:
            for name in chosen:
                attack, times, _ = ATTACKS[name]
                for number in range(options.times or times):
                    place = folder / f"{name}_{number}".replace(" ", "_")
                    tasks.append(
                        (name, pool.submit(survives, attack, trainer, place, f"{options.seed} {name} {number}"))
                    )
            results = [(name, *task.result()) for name, task in tasks]
    rows = [row(name, [result[1:] for result in results if result[0] == name]) for name in chosen]
    print(tabulate(rows, COLUMNS, tablefmt="plain", disable_numparse=True))
    return int(any(row[3] != "0" for row in rows))


def survives(attack: Attack, trainer: Trainer, folder: Path, seed: str) -> tuple[bool, float, str]:
    """Returns whether a run survives an attack, the seconds that took, and its remark; prints what was lost."""
    folder.mkdir()
    started = time.monotonic()
    try:
        remark, lost = attack(trainer, folder, random.Random(seed)), ""
    except Exception:
        remark, lost = "", traceback.format_exc()
    seconds = time.monotonic() - started
    print(f"{folder.name}: {'LOST' if lost else 'survived'} in {seconds:.0f} s {remark}\n{lost}".strip(), flush=True)
    return not lost, seconds, remark


def row(name: str, results: list[tuple[bool, float, str]]) -> tuple[str, ...]:
    """Returns a line of the table; remarks that begin with a number are added up."""
    each, survived = ATTACKS[name][2], sum(result[0] for result in results)
    remarks: Counter[str] = Counter()
    for _, _, remark in results:
        for part in filter(None, remark.split(", ")):
            count, _, what = part.partition(" ")
            remarks[what] += int(count)
    numbers = (each * len(results), each * survived, each * (len(results) - survived))
    seconds = f"{sum(result[1] for result in results):.0f}"
    return name, *map(str, numbers), seconds, ", ".join(f"{count} {what}" for what, count in remarks.items())


if __name__ == "__main__":
    sys.exit(main())
