"""Pictures a second of data and augmentation alone, beside what the training step of the paper's network takes.

    python -m benchmarks.input [--batch_size 20] [--pictures 50000] [--input_steps 50] [--repeats 5] [--json FILE]

Alone: everything of a step that comes before the network, on the device as in training: the order of the epoch,
the batch out of the data set, crop, flip, normalisation. Turn by turn in one process; medians, and the ratio is the
median of the turns' ratios. The data are random, in CIFAR's shape.
"""

import argparse
import statistics
import sys

import jax
import jax.numpy as jnp

from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.data.builders import SPECS
from attn_cnn_jax.errors import says_errors
from attn_cnn_jax.training.mesh import Pictures, data_mesh
from attn_cnn_jax.training.step import augmented, epoch_order, step_keys
from benchmarks.measure import median_ratio, table, turns, write_json
from benchmarks.training import add_common, configuration, random_pictures, training


@says_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, batch_size=20)
    parser.add_argument("--pictures", type=int, default=50_000, help="in the data set")
    parser.add_argument("--steps", type=int, default=1, help="training steps a turn")
    parser.add_argument("--input_steps", type=int, default=50, help="batches a turn of the input alone")
    options = parser.parse_args(argv)

    config, mesh = configuration(options), data_mesh(jax.devices()[:1])
    pictures = random_pictures(config, options.pictures, mesh)
    train, batches = training(config, mesh, pictures), create_input(config)
    count = jnp.int32(options.input_steps)
    functions = {
        "input alone": lambda: jax.block_until_ready(batches(pictures, count)),
        "training step": lambda: train(options.steps),
    }
    times = turns(functions, options.repeats)
    rows = []
    for (name, seconds), steps in zip(times.items(), (options.input_steps, options.steps), strict=True):
        times[name] = [each / steps for each in seconds]
        rates = sorted(options.batch_size / each for each in times[name])
        rows.append({"": name, "pictures/s": statistics.median(rates), "from": rates[0], "to": rates[-1]})
    ratio = median_ratio(times["training step"], times["input alone"])
    print(table(rows, ["", "pictures/s", "from", "to"]))
    print(f"the input alone is {ratio:.0f} times as fast as the step (median of {options.repeats} turns)")
    write_json(options.json, {"benchmark": "input", "seconds_a_batch": times, "rows": rows, "ratio": ratio})
    return 0


def create_input(config):
    """A jitted `batches(pictures, count)`: the inputs of the first `count` steps of an epoch; the last one's."""
    batch_size, spec = config.train.batch_size, SPECS["cifar10"]

    def batch(pictures: Pictures, order: jax.Array, step: jax.Array):
        indices = jax.lax.dynamic_slice_in_dim(order, step * batch_size, batch_size)
        images = augmented(config, step_keys(config.seed, step)[0], pictures.images[indices], jnp.int32(0))
        return normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype)), pictures.labels[indices]

    @jax.jit
    def batches(pictures: Pictures, count: jax.Array):
        order = epoch_order(config.seed, jnp.int32(0), len(pictures.labels))
        first = batch(pictures, order, jnp.int32(0))
        return jax.lax.fori_loop(1, count, lambda step, _: batch(pictures, order, step), first)

    return batches


if __name__ == "__main__":
    sys.exit(main())
