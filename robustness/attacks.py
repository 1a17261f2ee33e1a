"""The attacks: each disturbs real training processes, and raises AssertionError if anything is lost.

After each the same command has to continue from the newest intact checkpoint, to the same metrics and parameters as an
undisturbed run, bit for bit (to rounding, where the number of devices changes).
"""

import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from robustness.processes import (
    Trainer,
    assert_same_run,
    end,
    fail,
    finish,
    finished_steps,
    is_saving,
    records,
    wait_for_records,
)

EPOCHS = 12  # of the runs under attack, and:
EPOCHS_OF_KILLS = 60
KILLS = 10  # per run, half of them while a checkpoint is being saved
MOST_KILLS = 25  # before as many as that were while saving
Attack = Callable[[Trainer, Path, random.Random], dict[str, int]]  # returns what to count in the table


def killed(trainer: Trainer, folder: Path, generator: random.Random) -> dict[str, int]:
    """By `kill -9`, one process of a run after the other, at random moments."""
    workdir, saving, others, newest = folder / "run", 0, 0, 0
    for number in range(MOST_KILLS):
        if saving >= KILLS // 2 and others >= KILLS // 2:
            break
        process = trainer(workdir, EPOCHS_OF_KILLS)
        if others < KILLS // 2 and number % 2 and generator.random() < 0.4:
            time.sleep(generator.uniform(0, 4))  # as it starts
        else:
            wait_for_records(process, workdir, generator.randint(1, 4))
            if saving < KILLS // 2:
                while process.poll() is None and not is_saving(workdir):
                    pass
            else:
                time.sleep(generator.uniform(0, 0.05))
        output = end(process)
        assert "Traceback" not in output, output
        saving, others = (saving + 1, others) if is_saving(workdir) else (saving, others + 1)
        records(workdir)  # no half line breaks a reader
        steps = finished_steps(workdir)
        assert max(steps, default=0) >= newest, f"step {newest} is lost: there are {steps}"
        newest = max(steps, default=0)
    trainer.continues(workdir, EPOCHS_OF_KILLS)
    return {"while saving": saving, "at other moments": others}


def damaged(change: Callable[[bytes, random.Random], bytes]) -> Attack:
    """Returns an attack on a file of the newest of two checkpoints of a run that is not at its end."""

    def attack(trainer: Trainer, folder: Path, generator: random.Random) -> dict[str, int]:
        workdir = shutil.copytree(trainer.reference(EPOCHS), folder / "run")
        before, newest, last = finished_steps(workdir)[-3:]
        shutil.rmtree(workdir / f"checkpoints/{last}")
        paths = sorted(path for path in (workdir / f"checkpoints/{newest}").rglob("*") if path.is_file())
        path = generator.choice([path for path in paths if path.stat().st_size])
        path.write_bytes(change(path.read_bytes(), generator))
        output = finish(trainer(workdir, EPOCHS))
        noticed = f"skipping: the checkpoint of step {newest}" in output
        assert f"after step {before if noticed else newest} " in output, output
        assert not noticed or len(list((workdir / "damaged").iterdir())) == 1, "the damaged checkpoint is gone"
        assert_same_run(workdir, trainer.reference(EPOCHS))
        return {"noticed" if noticed else "made no difference": 1}

    return attack


def truncated(content: bytes, generator: random.Random) -> bytes:
    """Returns the beginning of a file."""
    return content[: generator.randrange(len(content))]


def flipped(content: bytes, generator: random.Random) -> bytes:
    """Returns a file with one byte changed."""
    changed = bytearray(content)
    changed[generator.randrange(len(content))] ^= generator.randint(1, 255)
    return bytes(changed)


# A command prefix: no file may grow beyond this, as on a full disk; a checkpoint's do, and config.json does not.
LIMIT = "import os, resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (4000, 4000)); os.execv(sys.argv[1], sys.argv[1:])"


def disk_full(trainer: Trainer, folder: Path, generator: random.Random) -> dict[str, int]:
    """No room for a checkpoint, from the beginning or from a moment on."""
    workdir = folder / "run"
    if generator.random() < 0.5:
        process = trainer(workdir, EPOCHS)
        wait_for_records(process, workdir, generator.randint(2, 4))
        end(process)
    steps = finished_steps(workdir)
    fail(trainer(workdir, EPOCHS, prefix=(sys.executable, "-c", LIMIT)), "the same command continues from")
    assert set(steps) <= set(finished_steps(workdir)), "a checkpoint is lost"
    trainer.continues(workdir, EPOCHS)
    return {}


def two_at_once(trainer: Trainer, folder: Path, generator: random.Random) -> dict[str, int]:
    """A second process in the same run directory is refused, the first trains to its end."""
    first = trainer(folder / "run", EPOCHS)
    wait_for_records(first, folder / "run", 1)
    fail(trainer(folder / "run", EPOCHS), "another process is training in")
    finish(first)
    assert_same_run(folder / "run", trainer.reference(EPOCHS))
    return {}


def interrupted(number: signal.Signals, times: int = 1) -> Attack:
    """Returns an attack by a signal that asks to stop, at any moment of the start or of training."""

    def attack(trainer: Trainer, folder: Path, generator: random.Random) -> dict[str, int]:
        workdir = folder / "run"
        process = trainer(workdir, EPOCHS, prefix=("env", "--default-signal=INT,TERM"))
        if trains := generator.random() < 0.7:
            wait_for_records(process, workdir, generator.randint(1, 3))
        else:
            time.sleep(generator.uniform(0.1, 3))
        has_ended = process.poll() is not None
        for _ in range(times):
            process.send_signal(number)
            time.sleep(generator.choice((0, 0.01, 0.1)))
        output = finish(process, 0, 128 + number, -number)
        saved = process.returncode == 128 + number
        assert saved or times > 1 or not trains or has_ended, f"ended with {process.returncode}: {output}"
        stopped = re.search(r"stopped after step (\d+)", output)
        assert not saved or (stopped and int(stopped[1]) in finished_steps(workdir)), f"not saved: {output}"
        trainer.continues(workdir, EPOCHS)
        return {"saved before the end": 1} if saved else {}

    return attack


def devices_change(trainer: Trainer, folder: Path, generator: random.Random) -> dict[str, int]:
    """Killed on one number of devices, continued on another."""
    workdir, counts = folder / "run", [1, 2, 4]
    generator.shuffle(counts)
    for count in counts[:2]:
        process = trainer(workdir, EPOCHS, devices=count)
        wait_for_records(process, workdir, 7)  # of two epochs at least: the first one's checkpoint is complete
        end(process)
        assert finished_steps(workdir), "nothing to continue from"
    trainer.continues(workdir, EPOCHS, devices=counts[2], tolerance=1e-3)
    return {}


def one_of_two_dies(number: int) -> Attack:
    """Returns an attack on a run of two processes: the other ends too, and both continue together."""

    def attack(trainer: Trainer, folder: Path, generator: random.Random) -> dict[str, int]:
        workdir = folder / "run"
        processes = trainer.pair(workdir, EPOCHS)
        wait_for_records(processes[0], workdir, generator.randint(1, 4))
        end(processes[number])
        finish(processes[1 - number], 1, -signal.SIGABRT)  # the latter from JAX's runtime
        trainer.continues(workdir, EPOCHS, processes=2)
        return {}

    return attack


# By name: the attack, how often, and how many tries each counts as.
ATTACKS: dict[str, tuple[Attack, int, int]] = {
    "killed": (killed, 6, KILLS),
    "truncated": (damaged(truncated), 20, 1),
    "byte flipped": (damaged(flipped), 20, 1),
    "disk full": (disk_full, 4, 1),
    "two at once": (two_at_once, 1, 1),
    "SIGTERM": (interrupted(signal.SIGTERM), 5, 1),
    "Ctrl-C": (interrupted(signal.SIGINT), 5, 1),
    "Ctrl-C twice": (interrupted(signal.SIGINT, 2), 3, 1),
    "devices change": (devices_change, 2, 1),
    "process 0 of 2 dies": (one_of_two_dies(0), 1, 1),
    "process 1 of 2 dies": (one_of_two_dies(1), 1, 1),
}
