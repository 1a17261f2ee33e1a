"""Attacks real training processes, and checks that nothing is lost.

    python -m robustness.faults [--kills 50] [--damages 20] [--checkpoints 200]
        [--interruptions 20] [--only NAME ...] [--json FILE]

After every attack the message has to be clear, without traceback; no finished checkpoint may be lost; the same
command has to go on from the newest intact checkpoint, and say which it skips; and metrics (but for timings) and
parameters at the end have to be those of an uninterrupted run, bit for bit (to rounding, where the number of devices
changes). Only then has the run survived. Some attacks mount a file system, which takes root, or compile a library that
fails calls: they are left out where that is not possible, and the table says so.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import table, write_json
from robustness import attacks, files, hosts, surroundings
from robustness.bench import Attacked, Bench, Skipped, streaming
from robustness.small_runs import Trainer

KILLS_A_RUN = 10
COLUMNS = ("attack", "tried", "survived", "lost", "seconds", "remarks")


class Attack(NamedTuple):
    """`attack(bench, folder, generator)` returns a remark, and raises AssertionError if anything is lost."""

    function: Attacked
    times: int
    tries_each: int = 1


def all_attacks(options: argparse.Namespace) -> dict[str, Attack]:
    return {
        "killed": Attack(attacks.killed(KILLS_A_RUN), -(-options.kills // KILLS_A_RUN), KILLS_A_RUN),
        "killed while streaming": Attack(streaming(attacks.killed(KILLS_A_RUN), 0), 1, KILLS_A_RUN),
        "disk full": Attack(attacks.disk_full, 3),
        "truncated": Attack(attacks.damaged(attacks.truncated), options.damages),
        "byte flipped": Attack(attacks.damaged(attacks.flipped), options.damages),
        "read-only": Attack(attacks.read_only, 2),
        "failing calls": Attack(files.failing, options.failures),
        "slow files": Attack(files.slow_files(options.checkpoints), 1, options.checkpoints),
        "deleted": Attack(attacks.deleted, 3),
        "two at once": Attack(attacks.two_at_once, 1),
        "clock set back": Attack(attacks.clock_set_back, 1),
        "interrupted": Attack(surroundings.interrupted, options.interruptions // 4, 4),
        **{name: Attack(function, 1) for name, function in surroundings.ATTACKS.items()},
        "names of folders": Attack(surroundings.names, 1, len(surroundings.NAMES) + len(surroundings.REFUSED)),
        "devices change": Attack(hosts.devices_change, 3, 4),
        "run of 0.1.0": Attack(hosts.old_run, 2),
        **{f"process {n} of 2 dies": Attack(hosts.one_of_two_dies(n), 2) for n in range(2)},
        **{f"process {n} of 2 dies, streaming": Attack(streaming(hosts.one_of_two_dies(n), n), 1) for n in range(2)},
        **{f"process {n} of 2 stopped": Attack(hosts.one_of_two_is_stopped(n), 2) for n in range(2)},
        **{f"process {n} of 2 alone": Attack(hosts.nobody_comes(n), 1) for n in range(2)},
        **{f"another {name} on process 1": Attack(hosts.different(name), 1) for name in hosts.DIFFERENT},
        "2 processes, truncated": Attack(hosts.damaged(attacks.truncated), 2),
        "2 processes, byte flipped": Attack(hosts.damaged(attacks.flipped), 2),
        "strangers": Attack(hosts.strangers, 1, 20),
        "memory": Attack(attacks.memory_grows, 1),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="rounded up to tens")
    parser.add_argument("--damages", type=int, default=20, help="files to truncate, and to flip a byte of")
    parser.add_argument("--failures", type=int, default=30, help="calls on files to fail, in as many runs")
    parser.add_argument("--checkpoints", type=int, default=200, help="to save with delayed file operations")
    parser.add_argument("--interruptions", type=int, default=20, help="processes to end by Ctrl-C, in fours")
    parser.add_argument("--seed", type=int, default=0, help="of what is random in the attacks")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="attacks to try; all by default")
    parser.add_argument("--json", metavar="FILE", help="also write the table there")
    options = parser.parse_args(argv)
    chosen = all_attacks(options)
    if unknown := set(options.only or ()) - set(chosen):
        parser.error(f"--only: there are {', '.join(chosen)}, not {', '.join(sorted(unknown))}")
    chosen = {name: attack for name, attack in chosen.items() if not options.only or name in options.only}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Trainer(Path(folder, "data"), Path(folder, "cache"), []), Path(folder))
        rows = [carry_out(bench, Path(folder), name, attack, options.seed) for name, attack in chosen.items()]
    print(table(rows, COLUMNS))
    write_json(options.json, {"benchmark": "faults", "seed": options.seed, "rows": rows})
    return int(any(row["lost"] for row in rows))


def carry_out(bench: Bench, folder: Path, name: str, attack: Attack, seed: int) -> dict:
    """Tries an attack; a row of the table."""
    row = {"attack": name, "tried": 0, "survived": 0, "lost": 0, "seconds": 0, "remarks": ""}
    remarks = []
    started = time.monotonic()
    for number in range(attack.times):
        place = folder / f"{name} {number}".replace(" ", "_")
        place.mkdir()
        try:
            remarks.append(attack.function(bench, place, random.Random(f"{seed} {name} {number}")))
            outcome = "survived"
        except Skipped as reason:
            remarks.append(f"skipped: {reason}")
            break
        except (AssertionError, subprocess.TimeoutExpired) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            outcome = "lost"
        except Exception:  # a mistake in the attack: the others are tried all the same
            print(f"{name}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            outcome = "lost"
        finally:
            bench.trainer.end_all()
        row["tried"] += attack.tries_each
        row[outcome] += attack.tries_each
        shutil.rmtree(place, ignore_errors=True)
        print(f"{name}: {row['survived']} of {row['tried']}", file=sys.stderr, flush=True)
    return row | {"seconds": round(time.monotonic() - started), "remarks": together(remarks)}


def together(remarks: list[str]) -> str:
    """Remarks that begin with a count as their sum, the others one after the other."""
    counts, others = {}, []
    for remark in filter(None, remarks):
        count, _, what = remark.partition(" ")
        if count.isdigit():
            counts[what] = counts.get(what, 0) + int(count)
        else:
            others.append(remark)
    return "; ".join([*(f"{count} {what}" for what, count in counts.items()), *others])


if __name__ == "__main__":
    sys.exit(main())
