"""Slow and failing file systems, for robustness.faults: calls of the C library that take long, or fail."""

import errno
import functools
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from robustness.bench import EPOCHS, Bench, Skipped, damaged_checkpoints, goes_on
from robustness.small_runs import end, epochs, finish, finished_steps, wait_for_records

SOURCE = Path(__file__).with_name("failing.c")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE, errno.EMFILE, errno.EROFS, errno.EDQUOT)
# How many of them a run makes, at most, in its directory.
CALLS = {"open": 300, "mkdir": 60, "rename": 60, "fsync": 30, "write": 300}


@functools.cache
def library() -> Path:
    """Returns the library that delays and fails calls (failing.c), compiled; Skipped where that is not possible."""
    compiler = shutil.which("cc")
    path = Path(tempfile.mkdtemp(prefix="failing_calls_"), "failing.so")
    if not compiler or subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-ldl"]).returncode:
        raise Skipped("there is no C compiler")
    return path


def faulty(below: Path, **settings: object) -> tuple[str, ...]:
    """Returns the prefix of a command whose calls on files below a folder are slow or fail, as failing.c says."""
    words = [f"FAULT_{name.upper()}={value}" for name, value in settings.items()]
    return ("env", f"LD_PRELOAD={library()}", f"FAULT_BELOW={below}", *words)


def failing(bench: Bench, folder: Path, generator: random.Random) -> str:
    """One, some or all calls of a kind fail from some moment on: as a run begins, goes on, trains or saves."""
    workdir, log = folder / "run", folder / "failed"
    if generator.random() < 0.5:
        process = bench.trainer(workdir, epochs(EPOCHS))
        wait_for_records(process, generator.randint(3, 9))
        end(process)
    before = finished_steps(workdir)
    call = generator.choice(sorted(CALLS))
    after, count = int(CALLS[call] ** generator.random()) - 1, generator.choice((1, 1, 4, 10**6))
    error = generator.choice(ERRORS)
    prefix = faulty(workdir, call=call, after=after, count=count, errno=error, log=log)
    process = bench.trainer(workdir, epochs(EPOCHS), prefix=prefix)
    output, _ = process.communicate(timeout=300)
    what = f"{call} {after} fails {count} times with {os.strerror(error)}, before it {before}: {process.returncode}"
    assert process.returncode in (0, 1), f"{what}: {output}"
    assert "Traceback" not in output, f"{what}: {output}"
    assert not (workdir / "damaged").exists(), f"{what}: {output}"
    if process.returncode == 0 and not log.exists():
        return "1 not reached"
    assert max(finished_steps(workdir), default=0) >= max(before, default=0), f"{what}: {output}"
    try:
        goes_on(bench, workdir)
    except AssertionError as lost:
        raise AssertionError(f"{what}: {output}\nthen: {lost}") from None
    return f"{process.returncode} refused"


def slow_files(checkpoints: int, milliseconds: int = 10):
    """An attack on so many checkpoints of a run, all kept, where every call takes longer, as on a network."""

    def attack(bench: Bench, folder: Path, generator: random.Random) -> str:
        keep = f"--config.checkpoint.keep_last={checkpoints}"
        prefix = faulty(folder / "run", delay=milliseconds)
        finish(bench.trainer(folder / "run", epochs(checkpoints), keep, prefix=prefix), seconds=1500)
        steps = finished_steps(folder / "run")
        assert len(steps) == checkpoints, f"{len(steps)} checkpoints are left"
        found = damaged_checkpoints(folder / "run")
        assert not found, f"{len(found)} of {checkpoints} are damaged, first: {found[0]}"
        return ""

    return attack
