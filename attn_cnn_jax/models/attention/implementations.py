"""Which implementation of attention runs.

Each is an einsum for one head and one picture, vmapped over pictures and heads, and computes
`sum_h softmax(score_h) X W_val^(h) W_out^(h)`; without dropout they agree to rounding.

- `dense` holds all probabilities of a layer; of content on CPUs, those of a few pictures at a time, and computes them
  again in the backward pass. The cheapest for small pictures.
- `factorised`, for scores that are a row score plus a column score, replaces the product with `(H W)^2`
  probabilities by one along rows and one along columns. No array has two pixel axes.
- `blocked` holds the probabilities of a few queries at a time and computes them again in the backward pass.
  For all other scores and for dropout of single probabilities: memory grows as the pixels, time as their square.
"""

from typing import Any

# Probabilities that a layer may keep for the backward pass before the blocked form is taken.
DENSE_BYTES = 2**28
# On GPUs and TPUs a larger batch counts as one of so many pictures: several devices share it, or one has the memory.
# The number of devices itself must not choose, since dropout masks of the implementations differ.
PICTURES_OF_A_DEVICE = 100
# Time of a multiply-add of each implementation's averages, forward and backward, relative to one of dense averages. On
# 2 CPU cores a fit to times gave 3 to 8 to factorised, whose small products are limited by
# memory, and 1.1 to 1.2 to blocked, which computes probabilities twice; below 10x10 pixels all are within a quarter of
# each other. On GPUs and TPUs nothing is measured: 14 and 16 come from estimates of compiled programs, `--for=h100` and
# `--for=v5e:2x2` (docs/compile.md), where the factorised form is as fast as dense at 28x28 and at 32x32 pixels.
TIME_PER_MULTIPLY_ADD = {
    "cpu": {"dense": 1.0, "factorised": 5.0, "blocked": 1.2},
    "gpu": {"dense": 1.0, "factorised": 14.0, "blocked": 1.2},
    "tpu": {"dense": 1.0, "factorised": 16.0, "blocked": 1.2},
}
IMPLEMENTATIONS = ("auto", "dense", "factorised", "blocked")


def choose(
    implementation: str,
    *,
    factorises: bool,
    of_batch: bool,
    shape: tuple[Any, ...],
    num_heads: int,
    platform: str = "cpu",
) -> str:
    """Name of the implementation that runs: the one asked for where it applies, else the cheapest that fits.

    Args:
      implementation: one of `IMPLEMENTATIONS`.
      factorises: whether attention is a product, also after dropout.
      of_batch: whether dense attention keeps something for the probabilities of every picture; else all share them, or
        a few are held at a time.
      shape: of the activations, `(b, H, W, d)`; `b` may be symbolic unless it has to be compared.
      num_heads: of the layer.
      platform: "cpu", "gpu" or "tpu"; another counts as a GPU.
    """
    if implementation in ("dense", "blocked") or (implementation == "factorised" and factorises):
        return implementation
    batch, height, width, _ = shape
    pictures = 1
    if of_batch:
        pictures = batch if platform == "cpu" else min(batch, PICTURES_OF_A_DEVICE)
    probabilities = num_heads * (height * width) ** 2 * pictures
    possible = ["blocked"]
    possible += ["dense"] if 4 * probabilities <= DENSE_BYTES else []
    possible += ["factorised"] if factorises else []
    return min(possible, key=lambda name: cost(name, height, width, platform))


def cost(implementation: str, height: int, width: int, platform: str = "cpu") -> float:
    """Cost of an implementation's average over keys, per query pixel and channel, in multiply-adds of the dense one.

    All else, above all the value and output maps, costs the same for all.
    """
    multiply_adds = height + width if implementation == "factorised" else height * width
    times = TIME_PER_MULTIPLY_ADD.get(platform, TIME_PER_MULTIPLY_ADD["gpu"])
    return times[implementation] * multiply_adds
