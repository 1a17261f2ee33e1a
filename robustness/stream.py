"""Whether memory stays flat while a set streams that does not fit, and whether training waits for its pictures.

    python -m robustness.stream [--gigabytes 20] [--seconds 120] [--size 32] [--json FILE]

The set is generated: `--gigabytes` of pictures, decoded, of which a few are stored as PNG and stand for all others, so
that every picture is decoded as from the disk. Its index takes 12 bytes per picture, and every epoch has an order.

First the input alone for `--seconds`: pictures per second, from Grain's iterator to chunks on the device, and resident
memory of this process and those that read. Then `--steps` training steps of configs/cifar10_cpu.py on the same set:
pictures per second, and which share of the time the steps waited for pictures.
"""

import argparse
import io
import multiprocessing
import statistics
import sys
import time

import jax
import numpy as np
from flax import nnx
from PIL import Image

from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import create_model
from attn_cnn_jax.data.builders import SPECS
from attn_cnn_jax.data.stored import Stored
from attn_cnn_jax.training.feed import Streamed
from attn_cnn_jax.training.mesh import data_mesh, place
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate
from attn_cnn_jax.training.step import create_train_steps, initial_state
from benchmarks.measure import proc_bytes, table, write_json

STORED = 64  # pictures
CIFAR10_CPU = 700  # pictures per second that configs/cifar10_cpu.py trains on 2 cores


class Repeated:
    """A few encoded pictures that stand for any number."""

    def __init__(self, size: int):
        noise = np.random.default_rng(0).integers(0, 256, (STORED, 8, 8, 3), dtype=np.uint8)
        self.size = size
        self.files = [self.encoded(pixels) for pixels in noise]

    def encoded(self, pixels: np.ndarray) -> bytes:
        """A PNG of smooth noise, which takes about as long to decode as a photograph."""
        file = io.BytesIO()
        Image.fromarray(pixels).resize((self.size, self.size), Image.Resampling.BICUBIC).save(file, "PNG")
        return file.getvalue()

    def images(self, positions: np.ndarray) -> np.ndarray:
        """The pictures at these positions."""
        images = np.empty((len(positions), self.size, self.size, 3), np.uint8)
        for image, position in zip(images, positions, strict=True):
            image[:] = np.asarray(Image.open(io.BytesIO(self.files[position % STORED])))
        return images


def generated(gigabytes: float, size: int) -> Stored:
    """A set of so many gigabytes of decoded pictures."""
    count = int(gigabytes * 1e9) // (3 * size**2)
    return Stored(Repeated(size), np.arange(count), np.arange(count, dtype=np.int32) % 10, (size, size, 3))


def resident() -> float:
    """MiB of memory that this process and those that read have of their own, without files."""
    processes = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
    return sum(proc_bytes(f"{process}/status", "RssAnon") or 0 for process in processes) / 2**20


def input_alone(feed: Streamed, batch_size: int, seconds: float) -> list[dict]:
    """Ten moments of a feed whose chunks nobody trains with: the pictures per second since the last one, and memory.

    Evenly in so many seconds, or, with 0, in one epoch.
    """
    feed.start(0)
    step, moments, started = 0, [], time.monotonic()
    steps = len(feed) // batch_size

    def share() -> float:
        return (time.monotonic() - started) / seconds if seconds else step / steps

    for moment in range(11):
        before, first = time.monotonic(), step
        while share() < moment / 10 or step == first:
            jax.block_until_ready(feed.at(step).images)
            step += feed.steps_left(step)
        rate = (step - first) * batch_size / (time.monotonic() - before)
        moments.append({"pictures": step * batch_size, "pictures/s": rate, "resident MiB": resident()})
    feed.close()
    return moments[1:]  # the first is of the start


def training(feed: Streamed, config, mesh, num_steps: int) -> tuple[float, float]:
    """Pictures per second that train, and the share of the time that steps waited for them."""
    optimizer = create_optimizer(config.optimizer, learning_rate(config.optimizer, 1, num_steps))
    skeleton, state = initial_state(create_model(config.model, rngs=nnx.Rngs(0)), optimizer)
    train_steps, state = create_train_steps(config, mesh, skeleton, optimizer, SPECS["cifar10"]), place(state, mesh)
    at_once, waited, started = 20, 0.0, 0.0
    for step in range(0, num_steps + at_once, at_once):
        if step == at_once:  # the first dispatch compiles
            waited, started = 0.0, time.monotonic()
        before = time.monotonic()
        chunk = feed.at(step)
        waited += time.monotonic() - before
        state, results = train_steps(state, chunk, place(np.int32(at_once), mesh))
        jax.block_until_ready(results)
    seconds = time.monotonic() - started
    feed.close()
    return num_steps * config.train.batch_size / seconds, waited / seconds


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=120, help="of the input alone; 0: all pictures once")
    parser.add_argument("--steps", type=int, default=200, help="of training; 0: none; of pictures of 32x32 alone")
    parser.add_argument("--size", type=int, default=32, help="side of a picture in pixels")
    parser.add_argument("--json", metavar="FILE", help="also write what was measured there")
    options = parser.parse_args(argv)

    config, mesh = load_config("cifar10_cpu"), data_mesh(jax.devices()[:1])
    pictures = generated(options.gigabytes, options.size)
    print(f"{len(pictures.labels):,} pictures of {options.size}x{options.size}: {options.gigabytes} GB decoded")
    moments = input_alone(Streamed(pictures, config, mesh), config.train.batch_size, options.seconds)
    print(table(moments, list(moments[0])))
    rate = statistics.median(moment["pictures/s"] for moment in moments)
    print(f"the input alone: {rate:,.0f} pictures/s, {rate / CIFAR10_CPU:.1f} times what cifar10_cpu trains")
    found = {"benchmark": "stream", "gigabytes": options.gigabytes, "rows": moments, "ratio": rate / CIFAR10_CPU}
    if options.steps and options.size == 32:
        trained, share = training(Streamed(pictures, config, mesh), config, mesh, options.steps)
        print(f"cifar10_cpu on this set: {trained:,.0f} pictures/s, waiting for pictures {share:.2%} of the time")
        found |= {"training": trained, "input_wait": share}
    write_json(options.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
