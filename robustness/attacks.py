"""Attacks on real training processes, for robustness.faults: each returns a remark, or raises what it found lost."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from robustness import memory
from robustness.bench import EPOCHS, Bench, Skipped, goes_on
from robustness.small_runs import (
    assert_same_run,
    comparable,
    end,
    epochs,
    fail,
    finish,
    finished_steps,
    kill_at_random,
    wait_for_records,
)

EPOCHS_A_KILL = 9  # of which a killed process does at most 8


def killed(times: int):
    """An attack on so many processes of a run, one after the other."""

    def attack(bench: Bench, folder: Path, generator: random.Random) -> str:
        workdir, saving, newest = folder / "run", 0, 0
        for _ in range(times):
            saving += kill_at_random(bench.trainer(workdir, epochs(EPOCHS_A_KILL * times)), workdir, generator)
            comparable(workdir)  # no half line breaks a reader
            steps = finished_steps(workdir)
            assert max(steps, default=0) >= newest, f"step {newest} is lost: there are {steps}"
            newest = max(steps, default=0)
        goes_on(bench, workdir, EPOCHS_A_KILL * times)
        return f"{saving} while saving"

    return attack


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int):
    """A file system of this size at `folder`."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = shutil.which("mount") and subprocess.run(mount, stderr=subprocess.PIPE, text=True)
    if not mounted or mounted.returncode:
        raise Skipped("mounting a small disk is not permitted")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


# A command prefix: no file may grow beyond this, which a checkpoint's do.
LIMIT = "import os, resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (4096, 4096)); os.execv(sys.argv[1], sys.argv[1:])"
LIMITED = (sys.executable, "-c", LIMIT)


def disk_full(bench: Bench, folder: Path, generator: random.Random) -> str:
    with small_disk(folder / "disk", megabytes=8):
        workdir, filler = folder / "disk/run", folder / "disk/filler"
        process = bench.trainer(workdir, epochs(EPOCHS))
        wait_for_records(process, generator.randint(2, 6))
        with filler.open("wb", buffering=0) as file:
            while process.poll() is None:  # again and again, as the run removes old checkpoints
                with contextlib.suppress(OSError):
                    file.write(bytes(4096))
        fail(process, "No space left on device", "the same command goes on from the last checkpoint there")
        filler.unlink()
        goes_on(bench, workdir)
    return ""


def damaged(change: Callable[[bytes, random.Random], bytes]):
    """An attack on a file of the newest of two checkpoints."""

    def attack(bench: Bench, folder: Path, generator: random.Random) -> str:
        workdir = shutil.copytree(bench.reference(), folder / "run")
        before, newest = finished_steps(workdir)
        paths = sorted(path for path in (workdir / f"checkpoints/{newest}").rglob("*") if path.is_file())
        path = generator.choice([path for path in paths if path.stat().st_size])
        path.write_bytes(change(path.read_bytes(), generator))
        output = finish(bench.trainer(workdir, epochs(EPOCHS)))
        skipped = f"skipping: the checkpoint of step {newest}" in output
        if skipped:
            assert f"going on after step {before} of" in output, output
        else:
            assert "already trained to the end" in output, output
        assert "Traceback" not in output, output
        assert_same_run(workdir, bench.reference())
        return "" if skipped else "1 made no difference"

    return attack


def truncated(content: bytes, generator: random.Random) -> bytes:
    return content[: generator.randrange(len(content))]


def flipped(content: bytes, generator: random.Random) -> bytes:
    changed = bytearray(content)
    changed[generator.randrange(len(content))] ^= generator.randint(1, 255)
    return bytes(changed)


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def read_only(bench: Bench, folder: Path, generator: random.Random) -> str:
    """To a process of its own mount namespace, as permissions don't hold for root."""
    prefix = ("unshare", "--mount", "sh", "-c", READ_ONLY, str(folder))
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode:
        raise Skipped("mounting read-only is not permitted")
    process = bench.trainer(folder / "run", epochs(EPOCHS))
    if generator.random() < 0.5:
        wait_for_records(process, generator.randint(1, 5))
    end(process)
    fail(bench.trainer(folder / "run", epochs(EPOCHS), prefix=prefix), "Read-only file system")
    goes_on(bench, folder / "run")
    return ""


def deleted(bench: Bench, folder: Path, generator: random.Random) -> str:
    """The whole run directory, or its checkpoints: there is nothing to go on from."""
    process = bench.trainer(folder / "run", epochs(EPOCHS))
    wait_for_records(process, generator.randint(1, 6))
    victim = generator.choice(("run", "run/checkpoints"))
    while (folder / victim).exists():  # a file may appear while its folder is being removed
        shutil.rmtree(folder / victim, ignore_errors=True)
    fail(process, str(folder / "run"), "the same command goes on from the last checkpoint there")
    goes_on(bench, folder / "run")
    return ""


def two_at_once(bench: Bench, folder: Path, generator: random.Random) -> str:
    first = bench.trainer(folder / "run", epochs(EPOCHS))
    wait_for_records(first, generator.randint(1, 6))
    fail(
        bench.trainer(folder / "run", epochs(EPOCHS)),
        "another process is training in",
        "wait for it, or choose --workdir",
    )
    finish(first)
    assert_same_run(folder / "run", bench.reference())
    return ""


# For a child's sitecustomize: what the clock is off by, in seconds, as a function of the seconds it has run.
CLOCK = """
import time
start, real, real_ns = time.monotonic(), time.time, time.time_ns
def off():
    return {off}
time.time = lambda: real() + off()
time.time_ns = lambda: real_ns() + 10**9 * off()
"""


def clock_set_back(bench: Bench, folder: Path, generator: random.Random) -> str:
    """By a day after a kill, files of that day included; then by an hour while the process trains."""
    for name, off in (("tomorrow", "86400"), ("jumps", "-3600 if time.monotonic() - start > 6 else 0")):
        (folder / name).mkdir()
        (folder / name / "sitecustomize.py").write_text(CLOCK.format(off=off))
    process = bench.trainer(folder / "run", epochs(EPOCHS), pythonpath=folder / "tomorrow")
    wait_for_records(process, generator.randint(3, 8))
    end(process)
    for path in (folder / "run").rglob("*"):
        os.utime(path, (time.time() + 86400,) * 2)
    steps = finished_steps(folder / "run")
    output = finish(bench.trainer(folder / "run", epochs(EPOCHS), pythonpath=folder / "jumps"))
    assert f"going on after step {steps[-1]} of" in output, f"not from {steps}: {output}"
    assert_same_run(folder / "run", bench.reference())
    return ""


def memory_grows(bench: Bench, folder: Path, generator: random.Random) -> str:
    growth, arrays = memory.growth(memory.measure(bench.trainer, folder / "run"))
    assert growth < memory.LIMIT, f"resident memory has grown by {growth:.2%}"
    assert arrays <= 0, f"{arrays} more live arrays"
    return f"{growth:+.2%} resident, {arrays} arrays"
