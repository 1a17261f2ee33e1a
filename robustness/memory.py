"""Whether memory stays flat: 2,000 steps, 50 evaluations and 50 checkpoints of a small run in one process.

    python -m robustness.memory [--json FILE]

Resident memory and the number of live arrays after every epoch of 40 steps; what counts is how much they grow from
step 400, by which everything has been done several times, to the end.

The process keeps one heap for all its threads. By default the C library gives threads heaps of their own, and the
scratch memory of checkpoints stays in whichever thread wrote them: that takes 100 MiB more, and 2,000 steps later
another thread may still be the first to do so, which looks like a leak and is none. What grows by about 40 KiB a
checkpoint is: TensorStore keeps what its `experimental_collect_matching_metrics` and `KvStore.Spec.to_json` return.
"""

import argparse
import ctypes
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import proc_bytes, table, write_json
from robustness.small_runs import SMALL, Trainer, finish

LIMIT = 0.01
WARM_UP = 400  # steps
ONE_HEAP = ("env", "MALLOC_ARENA_MAX=1")
LENGTH = (
    "--config.train.batch_size=36",
    "--config.train.num_epochs=50",
)


def growth(moments: list[dict]) -> tuple[float, int]:
    """By which part resident memory, and by how many live arrays, a run grows after its warm-up.

    A checkpoint that is being written holds arrays for a while: of each half of the run the moment with fewest counts.
    """
    warm = [moment for moment in moments if moment["step"] >= WARM_UP]
    halves = warm[: len(warm) // 2], warm[len(warm) // 2 :]
    before, after = (min(moment["live arrays"] for moment in half) for half in halves)
    return warm[-1]["resident MiB"] / warm[0]["resident MiB"] - 1, after - before


def measure(trainer: Trainer, workdir: Path) -> list[dict]:
    """What a run in a process of its own holds after every epoch."""
    command = ("-m", "robustness.memory", "--child")
    output = finish(trainer(workdir, *LENGTH, program=command, prefix=ONE_HEAP))
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"step"')]


def child(argv: list[str]) -> int:
    """Trains as train.py does, with a measurement after every evaluation."""
    import jax

    from attn_cnn_jax.cli.main import main
    from attn_cnn_jax.training.reporter import Reporter

    report = Reporter.record

    def measured(self, record):
        report(self, record)
        if record["split"] != "test":
            return
        ctypes.CDLL(None).malloc_trim(0)  # the compiler's memory, which the C library gives back sooner or later
        moment = {"step": record["step"], "resident MiB": resident() / 2**20, "live arrays": len(jax.live_arrays())}
        print(json.dumps(moment), flush=True)

    Reporter.record = measured
    return main(["train", *argv])


def resident() -> int:
    """Bytes that this process has in memory of its own: without files, which the system loads and drops as it likes."""
    return proc_bytes("self/status", "RssAnon")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="also write what was measured there")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        moments = measure(Trainer(Path(folder, "data"), Path(folder, "cache"), []), Path(folder, "run"))
    print(table(moments, list(moments[0])))
    print("from step {} on resident memory grows by {:.2%}, live arrays by {}".format(WARM_UP, *growth(moments)))
    write_json(options.json, {"benchmark": "memory", "configuration": [*SMALL, *LENGTH], "rows": moments})
    return 0


if __name__ == "__main__":
    sys.exit(child(sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main())
