#!/usr/bin/env bash
# optax's cross-entropies read a label outside the classes in four ways: the last class, NaN, nothing, all classes.
#
# Versions: optax 0.2.8, jax and jaxlib 0.10.2, numpy 2.4.6; Python 3.11.
# One would expect: labels of -1, which stand for "no label" or fill a batch, are refused, or left out by each of them.
# Seen, of three classes: `softmax_cross_entropy_with_integer_labels` takes -1 for the last class, with its whole gradient;
# 3 and -100 give a loss of NaN, but a finite gradient, that of a softmax of which no class is right, so parameters stay
# finite and move. `softmax_cross_entropy` of `jax.nn.one_hot` has a loss and gradient of 0 for each; after
# `optax.smooth_labels` it has not: they are drawn to all classes alike, with the weight of the smoothing. `where=` leaves
# them out, in loss and gradient, of NaN too.
# Where it is met: tensorflow-datasets gives -1 for images of a test set without labels; PyTorch leaves out -100 and
# raises for others, so a data set made for it may hold either; losses of the last batch of an evaluation.
# Output: "integer, -1: the last class", "integer, 3: nan, gradient finite", "integer, -100: nan, gradient finite",
# "one-hot, -1: nothing", "one-hot, smoothed by 0.1, -1: all classes", "integer with where=, -1 and 3: nothing".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

logits = jnp.array([[1.0, 2.0, 3.0]])
integer = optax.softmax_cross_entropy_with_integer_labels


def one_hot(logits, labels):
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, 3))


def smoothed(logits, labels):
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(labels, 3), 0.1))


def masked(logits, labels):
    return integer(logits, labels, where=(labels >= 0) & (labels < 3))


def seen(loss, label):
    """The loss of one image with this label, in words."""
    value, gradient = jax.value_and_grad(lambda logits: loss(logits, jnp.array([label])).sum())(logits)
    if np.isnan(value):
        return f"nan, gradient {'finite' if np.isfinite(gradient).all() and np.abs(gradient).max() > 0.1 else 'not'}"
    for name, labels in (("the last class", [0.0, 0.0, 1.0]), ("all classes", [0.1 / 3] * 3), ("nothing", [0.0] * 3)):
        known, slope = jax.value_and_grad(lambda x, y=labels: optax.softmax_cross_entropy(x, jnp.array([y])).sum())(logits)
        if np.allclose(value, known, atol=1e-6) and np.allclose(gradient, slope, atol=1e-6):
            return name
    return "something else"


result = {
    "integer, -1": seen(integer, -1),
    "integer, 3": seen(integer, 3),
    "integer, -100": seen(integer, -100),
    "one-hot, -1": seen(one_hot, -1),
    "one-hot, smoothed by 0.1, -1": seen(smoothed, -1),
    "integer with where=, -1 and 3": seen(masked, -1) if seen(masked, -1) == seen(masked, 3) else "differs",
}
for name, what in result.items():
    print(f"{name}: {what}")
known = ["the last class", *["nan, gradient finite"] * 2, "nothing", "all classes", "nothing"]
sys.exit(list(result.values()) != known)
PYTHON
