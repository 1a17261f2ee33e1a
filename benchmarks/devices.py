"""The training step of the paper's network on 1, 2, 4 and 8 devices: the same numbers, and what splitting costs.

    python -m benchmarks.devices [--batch_size 16] [--devices 1 2 4 8] [--repeats 5] [--json FILE]

The devices are fakes that share this machine's cores: this shows that results do not depend on their number, and
the overhead of splitting a batch. It says nothing about speed on several real devices. Turn by turn in one process;
medians, ratios are medians of the turns' ratios.
"""

import argparse
import statistics
import sys

import jax
import numpy as np

from attn_cnn_jax.errors import says_errors
from attn_cnn_jax.training.mesh import data_mesh
from benchmarks.measure import median_ratio, table, turns, write_json
from benchmarks.training import add_common, configuration, random_pictures, training


@says_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, batch_size=16)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--steps", type=int, default=1, help="steps a turn")
    parser.add_argument("--check_steps", type=int, default=3, help="steps whose losses are compared")
    options = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(options.devices))

    config, functions, losses = configuration(options), {}, {}
    for count in options.devices:
        mesh = data_mesh(jax.devices()[:count])
        train = training(config, mesh, random_pictures(config, 10 * options.batch_size, mesh))
        losses[count] = train(options.check_steps)  # from the same start
        functions[count] = lambda train=train: train(options.steps)
    times = turns(functions, options.repeats)
    first = options.devices[0]
    rows = [
        {
            "fake devices": count,
            "seconds/step": statistics.median(seconds) / options.steps,
            f"times that of {first}": median_ratio(seconds, times[first]),
            "largest difference of a loss": float(np.abs(losses[count] - losses[first]).max()),
        }
        for count, seconds in times.items()
    ]
    print(table(rows, list(rows[0])))
    print("fake devices share the machine's cores: the numbers and the overhead, not the speed of real devices")
    write_json(options.json, {"benchmark": "devices", "seconds": times, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
