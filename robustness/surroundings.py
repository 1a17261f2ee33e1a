"""Attacks on what surrounds a training process, for robustness.faults: Ctrl-C, streams, environment, odd folders."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from robustness.bench import EPOCHS, Bench, Skipped, goes_on
from robustness.small_runs import assert_same_run, comparable, epochs, fail, finish

INTERRUPTED = 128 + signal.SIGINT
FULL = Path("/dev/full")


def interrupted(bench: Bench, folder: Path, generator: random.Random) -> str:
    """By Ctrl-C at any moment of the start or of training, once, or more often and soon after each other."""
    workdir, said = folder / "run", []
    for times in (1, 1, 2, 3):
        process = bench.trainer(workdir, epochs(EPOCHS), prefix=("env", "--default-signal=INT"))
        time.sleep(generator.uniform(0.3, 12))
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(generator.choice((0, 0.01, 0.1)))
        output, _ = process.communicate(timeout=60)
        assert "Traceback" not in output, output
        assert process.returncode in (0, INTERRUPTED, -signal.SIGINT), f"ended with {process.returncode}: {output}"
        comparable(workdir)
        said.append(process.returncode)
    goes_on(bench, workdir)
    return f"{len([status for status in said if status])} interrupted"


# Shell commands that start a program with such standard streams.
STREAMS = {
    "full output": 'exec "$@" > /dev/full',
    "full error": 'exec "$@" 2> /dev/full',
    "closed input": 'exec "$@" <&-',
    "closed output": 'exec "$@" >&-',
    "closed error": 'exec "$@" 2>&-',
    "all closed": 'exec "$@" <&- >&- 2>&-',
    "no reader": '"$@" | head -1',
}


def streams(name: str):
    """An attack on a run that has no such stream: it trains to its end as any other."""

    def attack(bench: Bench, folder: Path, generator: random.Random) -> str:
        if "/dev/full" in STREAMS[name] and not FULL.exists():
            raise Skipped("there is no /dev/full")
        finish(bench.trainer(folder / "run", epochs(EPOCHS), prefix=("sh", "-c", STREAMS[name], "sh")))
        assert_same_run(folder / "run", bench.reference())
        return ""

    return attack


# Keeps what permissions root has, for Python may lie below /root, but no user of the system has this number.
NOBODY = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "--inh-caps=-all,+dac_override")
UNSET = ("env", "-u", "JAX_COMPILATION_CACHE_DIR")  # so that the user's cache folder counts
ENVIRONMENTS = {
    "no user, no home": (*NOBODY, "--ambient-caps=-all,+dac_override", *UNSET, "-u", "HOME", "-u", "XDG_CACHE_HOME"),
    "no temporary folder": ("env", "TMPDIR=/nowhere", "TMP=/nowhere", "TEMP=/nowhere"),
    "empty cache folder": (*UNSET, "XDG_CACHE_HOME="),
    "no terminal": ("env", "-u", "TERM", "NO_COLOR=1"),
    "Latin-1": ("env", "PYTHONIOENCODING=latin-1"),
    "ASCII": ("env", "PYTHONIOENCODING=ascii:strict"),
    "umask 077": ("sh", "-c", 'umask 077; exec "$@"', "sh"),
    "few files": ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh"),
    "read-only current folder": ("env", "--chdir=/proc"),
}


def environment(name: str):
    """An attack on a run in such an environment, its folder of letters outside Latin-1: it trains as any other."""
    prefix = ENVIRONMENTS[name]

    def attack(bench: Bench, folder: Path, generator: random.Random) -> str:
        check = bench.trainer(folder / "help", "--help", prefix=prefix, program=("-c", "pass"))
        if check.wait(timeout=60):
            raise Skipped(f"{prefix[0]} is not possible")
        output = finish(bench.trainer(folder / "r\u0436\u6f22", epochs(EPOCHS), prefix=prefix))
        assert "Traceback" not in output, output
        assert_same_run(folder / "r\u0436\u6f22", bench.reference())
        return ""

    return attack


NAMES = ("new\nline", "tab\t", "quote'\"`$HOME`", " ", "-x", "%s{0}", "\x1b]0;x", "a#b%41", "é\U0001f600", "a" * 255)
REFUSED = ("a\\b", "lr[0.1]", "a*b", "a?", "bad\udcff\udcfe", "gs:/run", "a" * 256)


def names(bench: Bench, folder: Path, generator: random.Random) -> str:
    """Runs in folders of odd names train as any other, or are refused before the first step."""
    for name in NAMES:
        finish(bench.trainer(folder / name, epochs(1)))
        assert_same_run(folder / name, bench.reference(1))
    for name in REFUSED:
        fail(bench.trainer(folder / "refused" / name, epochs(1)), "choose another --workdir=DIR" * (len(name) < 256))
        assert not list((folder / "refused").glob("*")), name
    return ""


ATTACKS: dict[str, Callable] = {
    **{f"streams: {name}": streams(name) for name in STREAMS},
    **{f"environment: {name}": environment(name) for name in ENVIRONMENTS},
}
