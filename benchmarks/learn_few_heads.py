"""Does training find the few heads that a convolution needs? Error after training against the bound, by rank and heads.

    python -m benchmarks.learn_few_heads --out=results/learn_few_heads
    python -m benchmarks.learn_few_heads --show=results/learn_few_heads [--write]

Teacher: a random 3x3 convolution of 8 channels whose kernel has rank 1, 2, 4 or 9 over shifts. Student: a layer with 1
to 9 heads, a learned table of scores over 7x7 shifts and value maps. Images are normal noise, of which the mean squared
error is known: that of `sum_h a_h vec(W^(h))^T` against the kernel. It is trained by Adam as in learn_convolution.py,
but without drawing images; the error that is kept is measured on images, with the layer that the parameters make.
"""

import itertools
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from matplotlib.figure import Figure

from attn_cnn_jax import compiling
from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.cli.arguments import at_least_one, integers
from attn_cnn_jax.errors import exits_with_messages
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings.table import ShiftTable
from attn_cnn_jax.models.initialisation import set_values
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.theorem import heads_needed, learning
from benchmarks.measure import table
from benchmarks.records import DOCS, parse, parser, put_figure, write_trainings

FILE = "results.json"
WINDOW = 2 * learning.MARGIN + 1  # rows and columns of shifts that a head may look at
COLUMNS = ("rank", "heads needed", *(str(n) for n in range(1, 10)))


@exits_with_messages
def main(argv: list[str] | None = None) -> int:
    described = parser(__doc__)
    described.add_argument("--ranks", type=integers, default=[1, 2, 4, 9], metavar="N,...", help="1,2,4,9")
    described.add_argument("--heads", type=integers, default=list(range(1, 10)), metavar="N,...", help="1 to 9")
    described.add_argument("--steps", type=at_least_one, default=3000)
    options = parse(described, argv)
    file = (options.show or options.out) / FILE
    done = json.loads(file.read_text())["trainings"] if options.show or file.exists() else []
    had = {(each["rank"], each["heads"]) for each in done}
    for rank, heads in itertools.product(options.ranks, options.heads) if options.out else ():
        if (rank, heads) in had:
            continue
        done += train(rank, heads, options.seeds, options.steps)
        write_trainings(file, done)
        print(f"rank {rank}, {heads} heads: {done[-1]['seconds']} s", flush=True)
    print(table(rows(done), COLUMNS))
    if options.write:
        put_figure(draw(done), DOCS / "learn_few_heads.png")
    return 0


def teacher(seed: int, rank: int) -> np.ndarray:
    """A kernel `(3, 3, D, D)` of a rank over shifts, from normal patterns and value maps; of output variance one."""
    rng, channels = np.random.default_rng(seed), learning.CHANNELS
    rows = rng.normal(size=(9, rank)) @ rng.normal(size=(rank, channels**2))
    kernel = rows.reshape(3, 3, channels, channels)
    return (kernel * np.sqrt(channels) / np.linalg.norm(kernel)).astype(np.float32)


def train(rank: int, heads: int, seeds: list[int], steps: int) -> list[dict]:
    """What one number of heads reaches for the teachers of all seeds, each with a student of its own."""
    started = time.process_time()
    kernels = [teacher(seed, rank) for seed in seeds]
    margin = ((learning.MARGIN - 1,) * 2,) * 2
    wide = jnp.stack([np.pad(kernel, (*margin, (0, 0), (0, 0))).reshape(WINDOW**2, -1) for kernel in kernels])
    scores, values = jax.vmap(lambda key: start(key, heads))(jnp.stack([jax.random.key(seed) for seed in seeds]))
    scores, values = compiling.jit(jax.vmap(lambda *each: fitted(*each, steps)))(scores, values, wide)
    seconds = round((time.process_time() - started) / len(seeds), 2)
    found = []
    for n, (seed, kernel) in enumerate(zip(seeds, kernels, strict=True)):
        needed = heads_needed(kernel, 1e-5)
        error = error_on_images(scores[n], values[n], kernel, seed)
        bound = float(needed.error[min(heads, 9)])
        found.append({"rank": rank, "heads": heads, "seed": seed, "steps": steps, "needed": needed.enough})
        found[-1] |= {"error": float(f"{error:.4g}"), "bound": float(f"{max(bound, 1e-7):.4g}"), "seconds": seconds}
    return found


def start(key: jax.Array, heads: int) -> tuple[jax.Array, jax.Array]:
    """Normal scores, and value maps of the size that PyTorch's default has."""
    of_scores, of_values = jax.random.split(key)
    scale = 1 / np.sqrt(3 * heads * learning.CHANNELS)
    values = scale * jax.random.normal(of_values, (heads, learning.CHANNELS**2))
    return jax.random.normal(of_scores, (heads, WINDOW**2)), values


def fitted(scores: jax.Array, values: jax.Array, kernel: jax.Array, steps: int) -> tuple[jax.Array, jax.Array]:
    """Scores and value maps after training; the loss is the squared relative error, mean over images."""
    optimizer = optax.adam(optax.cosine_decay_schedule(learning.LEARNING_RATE, steps))

    def loss(parameters):
        scores, values = parameters
        made = jnp.einsum("hs,hf->sf", jax.nn.softmax(scores, axis=-1), values, precision="highest")
        return jnp.square(made - kernel).sum() / jnp.square(kernel).sum()

    def step(carry, _):
        parameters, state = carry
        updates, state = optimizer.update(jax.grad(loss)(parameters), state, parameters)
        return (optax.apply_updates(parameters, updates), state), None

    parameters = scores, values
    (parameters, _), _ = jax.lax.scan(step, (parameters, optimizer.init(parameters)), length=steps)
    return parameters


def error_on_images(scores: jax.Array, values: jax.Array, kernel: np.ndarray, seed: int) -> float:
    """`|layer - teacher| / |teacher|` of interior queries of 256 images."""
    heads, channels = len(scores), learning.CHANNELS
    position = ShiftTable(np.asarray(scores).reshape(heads, WINDOW, WINDOW))
    layer = SelfAttention(position, num_heads=heads, hidden_size=channels, rngs=nnx.Rngs(0))
    set_values(layer, np.asarray(values).reshape(heads, channels, channels))
    skeleton, parameters, _ = split(layer)
    x = learning.noise(jax.random.fold_in(learning.image_key(seed), 2**31), 256, channels)
    return float(learning.relative_error(skeleton, parameters, jnp.asarray(kernel), x))


def rows(trainings: list[dict]) -> list[dict]:
    """A row per rank: lowest to highest error of the seeds in percent, by number of heads."""
    found = []
    for rank in sorted({each["rank"] for each in trainings}):
        of_rank = [each for each in trainings if each["rank"] == rank]
        needed = sorted({each["needed"] for each in of_rank})
        row = {"rank": rank, "heads needed": " or ".join(map(str, needed))}
        for heads in sorted({each["heads"] for each in of_rank}):
            errors = [100 * each["error"] for each in of_rank if each["heads"] == heads]
            row[str(heads)] = f"{min(errors):.2g} to {max(errors):.2g}"
        found.append({column: row.get(column, "") for column in COLUMNS})
    return found


def draw(trainings: list[dict]) -> Figure:
    """A panel per rank: the error of every seed over heads, and the mean bound of Eckart and Young."""
    ranks = sorted({each["rank"] for each in trainings})
    with style.styled():
        figure = style.create_figure(7.0, 2.3)
        for axes, rank in zip(figure.subplots(1, len(ranks), sharey=True, squeeze=False)[0], ranks, strict=True):
            of_rank = [each for each in trainings if each["rank"] == rank]
            counts = sorted({each["heads"] for each in of_rank})
            bound = [np.mean([each["bound"] for each in of_rank if each["heads"] == n]) for n in counts]
            axes.step(counts, np.maximum(bound, FLOOR), where="mid", color="0.6", label="no layer is below")
            heads, errors = ([each[key] for each in of_rank] for key in ("heads", "error"))
            axes.semilogy(heads, np.maximum(errors, FLOOR), ".", color=style.look(0).colour, label="trained")
            needed = sorted({each["needed"] for each in of_rank})
            axes.axvline(needed[-1], color=style.look(1).colour, linewidth=0.8, linestyle=":", label="heads needed")
            axes.set(title=f"rank {rank}", xlabel="heads", xticks=range(1, 10), ylim=(FLOOR / 2, 1.5))
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
            style.decorate(axes)
            if rank == ranks[0]:
                axes.set_ylabel("relative error")
                axes.legend(frameon=False, loc="upper right")
    return figure


FLOOR = 1e-6  # of the figure; below it errors are rounding of float32


if __name__ == "__main__":
    sys.exit(main())
