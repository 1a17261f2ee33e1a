"""Training pictures a second: ours beside the same network in PyTorch, computed as the authors' release does.

    python -m benchmarks.train_step [--encoding quadratic] [--batch_size 20] [--image_size 32] [--repeats 5]

Both run in this process, turn by turn; the numbers are medians, and the ratio is the median of the turns' ratios.
Needs PyTorch (`pip install -e ".[torch]"`).
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests.references

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.data.sources import SPECS
from attn_cnn_jax.models import create_model
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate
from attn_cnn_jax.training.step import Pictures, create_train_steps, data_mesh, initial_state, place

ENCODINGS = {
    "quadratic": {"encoding": "quadratic"},
    "quadratic_generalized": {"encoding": "quadratic_generalized"},
    "learned": {"encoding": "learned"},
    "learned_content": {"encoding": "learned", "content": True},
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoding", choices=ENCODINGS, default="quadratic")
    parser.add_argument("--batch_size", type=int, default=20)
    parser.add_argument("--image_size", type=int, default=32, help="side in pixels; attention sees half of it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="steps a turn")
    options = parser.parse_args(argv)

    ours, theirs = jax_steps(options), pytorch_steps(options)
    ours(), theirs()  # compile and warm up
    turns = [(seconds(ours), seconds(theirs)) for _ in range(options.repeats)]
    pictures = options.batch_size * options.steps
    for name, times in zip(("JAX", "PyTorch eager"), zip(*turns, strict=True), strict=True):
        rates = sorted(pictures / t for t in times)
        print(f"{name:14} {statistics.median(rates):7.2f} pictures/s  (from {rates[0]:.2f} to {rates[-1]:.2f})")
    print(f"ratio          {statistics.median(b / a for a, b in turns):7.2f}  (median of {options.repeats} turns)")
    return 0


def seconds(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def jax_steps(options: argparse.Namespace):
    """A function that trains `options.steps` steps of the paper's network and waits for them."""
    size, batch_size = options.image_size, options.batch_size
    config = attention_config(image_shape=(size, size, 3), **ENCODINGS[options.encoding])
    config.train.batch_size = batch_size
    mesh = data_mesh()
    optimizer = create_optimizer(config.optimizer, learning_rate(config.optimizer, 100, 100))
    skeleton, state = initial_state(create_model(config.model, rngs=nnx.Rngs(0)), optimizer)
    train_steps = create_train_steps(config, mesh, skeleton, optimizer, SPECS["cifar10"])
    count = batch_size * max(10, options.steps)
    images = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    pictures = place(Pictures(images, np.zeros(count, np.int32)), mesh)
    held = {"state": place(state, mesh)}

    def steps():
        held["state"] = held["state"]._replace(step=place(np.int32(0), mesh))  # stay inside one epoch
        held["state"], results = train_steps(held["state"], pictures, jnp.int32(options.steps))
        jax.block_until_ready(results)

    return steps


def pytorch_steps(options: argparse.Namespace):
    """The same in PyTorch: data in memory, normalised beforehand, no augmentation (in its favour)."""
    import torch

    from tests.references import torch_networks

    size = options.image_size
    network = torch_networks.AttentionClassifier(options.encoding, image_shape=(size, size, 3)).train()
    optimizer, _ = torch_networks.sgd_with_warmup(network, 0.1, 1e-4, 100, 5)
    images = torch.randn(options.batch_size, size, size, 3)
    labels = torch.zeros(options.batch_size, dtype=torch.long)

    def steps():
        for _ in range(options.steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(images), labels).backward()
            optimizer.step()

    return steps


if __name__ == "__main__":
    sys.exit(main())
