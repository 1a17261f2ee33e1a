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
        tries = {}
        with ThreadPoolExecutor(options.jobs) as pool:
            for name in chosen:
                attack, times, _ = ATTACKS[name]
                places = [folder / f"{name}_{number}".replace(" ", "_") for number in range(options.times or times)]
                tries[name] = [pool.submit(survives, attack, trainer, place, options.seed) for place in places]
    rows = [row(name, [each.result() for each in of_name]) for name, of_name in tries.items()]
    print(tabulate(rows, COLUMNS, tablefmt="plain", disable_numparse=True))
    return int(any(row[3] != "0" for row in rows))


def survives(attack: Attack, trainer: Trainer, folder: Path, seed: int) -> tuple[bool, float, dict[str, int]]:
    """Returns whether a run survives an attack, the seconds that took, and what it counts; prints what was lost."""
    folder.mkdir()
    started = time.monotonic()
    try:
        counts, lost = attack(trainer, folder, random.Random(f"{seed} {folder.name}")), ""
    except Exception:
        counts, lost = {}, traceback.format_exc()
    seconds = time.monotonic() - started
    text = f"{folder.name}: {'LOST' if lost else 'survived'} in {seconds:.0f} s {counts or ''}\n{lost}"
    print(text.strip(), flush=True)
    return not lost, seconds, counts


def row(name: str, results: list[tuple[bool, float, dict[str, int]]]) -> tuple[str, ...]:
    """Returns a line of the table; what the attacks count is added up."""
    each, survived = ATTACKS[name][2], sum(result[0] for result in results)
    remarks = sum((Counter(result[2]) for result in results), Counter())
    numbers = (each * len(results), each * survived, each * (len(results) - survived))
    seconds = f"{sum(result[1] for result in results):.0f}"
    return name, *map(str, numbers), seconds, ", ".join(f"{count} {what}" for what, count in remarks.items())


if __name__ == "__main__":
    sys.exit(main())
