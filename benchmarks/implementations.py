"""Every attention implementation on one layer at several picture sizes: what is fastest, and what `auto` takes.

    python -m benchmarks.implementations [--sizes 8 12 16 24 32] [--pixels 5120] [--hidden_size 400] [--json FILE]

Forward and backward of one layer without dropout, each size with about as many pixels in all, turn by turn. The last
columns are the implementation that `auto` takes and its time over that of the fastest; below, the time of a multiply-
add of each one's averages relative to a dense one, fitted to all sizes (`TIME_PER_MULTIPLY_ADD` in
models/attention/implementations.py).
"""

import argparse
import statistics
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_cnn_jax.errors import says_errors
from attn_cnn_jax.models.attention import implementations
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings import Quadratic
from attn_cnn_jax.models.platform import for_platform
from benchmarks.measure import table, turns, write_json

NAMES = ("dense", "factorised", "blocked")


@says_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 12, 16, 24, 32], help="sides in pixels")
    parser.add_argument("--pixels", type=int, default=5120, help="of a batch, about")
    parser.add_argument("--hidden_size", type=int, default=400)
    parser.add_argument("--num_heads", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--json", metavar="FILE", help="also write what was measured there")
    options = parser.parse_args(argv)

    rows, samples = [], []
    for size in options.sizes:
        batch = max(1, options.pixels // size**2)
        seconds = measured(options, size, batch)
        attention = for_platform(layer(options, "auto"), jax.default_backend())
        chosen = attention.implementation_for((batch, size, size, options.hidden_size), training=True)
        rows.append(
            {"pixels": f"{size}x{size}", "batch": batch}
            | {f"{name} (ms)": 1000 * seconds[name] for name in NAMES}
            | {"auto": chosen, "over the fastest": seconds[chosen] / min(seconds.values())}
        )
        samples += [(name, size, batch * size**2, seconds[name]) for name in NAMES]
    print(table(rows, list(rows[0])))
    fitted = fit(samples) if len(options.sizes) > 1 else None
    if fitted:
        print("time per multiply-add: " + ", ".join(f"{name} {value:.2f}" for name, value in fitted.items()))
    found = {"benchmark": "implementations", "rows": rows, "time_per_multiply_add": fitted}
    write_json(options.json, found)
    return 0


def measured(options: argparse.Namespace, size: int, batch: int) -> dict[str, float]:
    """Seconds of every implementation here, medians."""
    times = turns({name: step(options, size, batch, name) for name in NAMES}, options.repeats)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def layer(options: argparse.Namespace, implementation: str) -> SelfAttention:
    """One layer of the paper's `quadratic`, without dropout."""
    rngs = nnx.Rngs(0)
    return SelfAttention(
        Quadratic(options.num_heads, rngs=rngs),
        num_heads=options.num_heads,
        hidden_size=options.hidden_size,
        implementation=implementation,
        rngs=rngs,
    )


def step(options: argparse.Namespace, size: int, batch: int, implementation: str):
    """A function that computes the gradients of one layer and waits for them; compiled when first called."""
    graph, state = nnx.split(layer(options, implementation))
    x = jax.random.normal(jax.random.key(0), (batch, size, size, options.hidden_size))

    @jax.jit
    def gradients(state, x):
        return jax.grad(lambda state, x: jnp.square(nnx.merge(graph, state, copy=True)(x)).mean(), (0, 1))(state, x)

    return lambda: jax.block_until_ready(gradients(state, x))


def fit(samples: list[tuple[str, int, int, float]]) -> dict[str, float]:
    """Least squares of `seconds = pixels (maps + time[implementation] multiply-adds)`, in times of dense's.

    Args:
      samples: implementation, side in pixels, pixels of the batch, seconds.
    """
    features = np.array(
        [
            [1.0] + [multiply_adds(name, size) if name == other else 0.0 for other in NAMES]
            for name, size, _, _ in samples
        ]
    )
    seconds = np.array([seconds / pixels for _, _, pixels, seconds in samples])
    weights = 1 / seconds  # relative errors
    _, *times = np.linalg.lstsq(features * weights[:, None], seconds * weights, rcond=None)[0]
    return dict(zip(NAMES, (float(time / times[0]) for time in times), strict=True))


def multiply_adds(implementation: str, size: int) -> float:
    """Of an average over keys, for one query pixel and channel."""
    return (
        implementations.cost(implementation, size, size) / implementations.TIME_PER_MULTIPLY_ADD["cpu"][implementation]
    )


if __name__ == "__main__":
    sys.exit(main())
