"""Seconds until the paper's network trains: imports, and the first step with and without the compilation cache.

    python -m benchmarks.startup [--batch_size 20] [--repeats 3] [--json FILE]

Every measurement is a process of its own, turn by turn: one with an empty cache folder, one with a folder that an
earlier process filled. "compile" is what a first step costs beyond later ones: tracing, lowering, compiling, or
reading the cache. Medians.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGES = ("import", "network", "compile", "step", "process")


def main(argv: list[str] | None = None) -> int:
    if argv is None and sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return 0
    from attn_cnn_jax.errors import says_errors  # a child measures its own imports

    return says_errors(measure)(sys.argv[1:] if argv is None else argv)


def measure(arguments: list[str]) -> int:
    """Prints the table, and writes the JSON file."""
    from benchmarks.measure import table, write_json
    from benchmarks.training import configuration

    options = parse(arguments)
    configuration(options)  # says what is wrong with it before processes begin
    with tempfile.TemporaryDirectory() as folder:
        filled = Path(folder, "filled")
        measure_process(filled, arguments)  # fills it, and brings the imports' files into memory
        found = {"empty cache": [], "filled cache": []}
        for turn in range(options.repeats):
            found["empty cache"].append(measure_process(Path(folder, str(turn)), arguments))
            found["filled cache"].append(measure_process(filled, arguments))

    rows = [
        {"seconds": name, **{stage: statistics.median(each[stage] for each in each_process) for stage in STAGES}}
        for name, each_process in found.items()
    ]
    print(table(rows, ["seconds", *STAGES]))
    write_json(options.json, {"benchmark": "startup", "seconds": found, "rows": rows})
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    from benchmarks.training import add_common

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, batch_size=20)
    parser.set_defaults(repeats=3)
    return parser.parse_args(argv)


def measure_process(cache: Path, arguments: list[str]) -> dict[str, float]:
    """Runs `child` in a process with this cache folder; its stages, and the whole process from start to end."""
    command = [sys.executable, "-m", "benchmarks.startup", "--child", *arguments]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    started = time.perf_counter()
    finished = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(finished.stdout.splitlines()[-1]) | {"process": time.perf_counter() - started}


def child(arguments: list[str]) -> None:
    """Starts as train.py does, and prints how long each stage took, as JSON."""
    clock = [time.perf_counter()]

    import attn_cnn_jax.cli.train  # noqa: F401

    clock.append(time.perf_counter())
    import jax

    from attn_cnn_jax.training.mesh import data_mesh
    from benchmarks.training import configuration, random_pictures, training

    config, mesh = configuration(parse(arguments)), data_mesh(jax.devices()[:1])
    train = training(config, mesh, random_pictures(config, 10 * config.train.batch_size, mesh))
    clock.append(time.perf_counter())
    for _ in range(2):
        train(1)
        clock.append(time.perf_counter())
    imports, network, first, second = (after - before for before, after in itertools.pairwise(clock))
    print(json.dumps({"import": imports, "network": network, "compile": first - second, "step": second}))


if __name__ == "__main__":
    sys.exit(main())
