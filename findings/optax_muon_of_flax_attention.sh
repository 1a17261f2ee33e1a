#!/usr/bin/env bash
# optax and Flax: `optax.contrib.muon` leaves the matrices of Flax's attention to Adam, and orthogonalises their biases.
#
# Versions: optax 0.2.8, flax 0.12.8, jax and jaxlib 0.10.2; Python 3.11.
# One would expect: Muon is for the matrices inside blocks, of which queries, keys, values and the map after the heads
# are half; biases go to Adam.
# Seen: `muon` takes what has two axes. Attention of Flax (linen and NNX) keeps a kernel per head, `(features, heads,
# head_dim)` and `(heads, head_dim, features)`, three axes: all four go to Adam. The biases of queries, keys and values,
# `(heads, head_dim)`, have two, and are orthogonalised over the heads: with 4 heads every update of a bias has 4
# singular values that are equal to a factor of 1.6. Nothing is said. `muon_weight_dimension_numbers` names the axes.
# Where it is met: vision transformers of Flax trained by optax's Muon with its defaults, and compared with other optimizers.
# Output: "kernels of attention to Muon: 0 of 4", "biases of attention to Muon: 3 of 4", "kernels of dense layers to Muon:
# 2 of 2", "update of a bias, singular values: equal", "update of a query kernel: that of Adam",
# "with dimension numbers: 4 of 4".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q optax==0.2.8 flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import numpy as np
import optax
from flax import nnx
from optax.contrib import MuonDimensionNumbers, muon


class Block(nnx.Module):
    """Attention, and two linear maps after it."""

    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(4, 64, decode=False, rngs=rngs)
        self.first, self.second = nnx.Linear(64, 128, rngs=rngs), nnx.Linear(128, 64, rngs=rngs)


parameters = nnx.to_pure_dict(nnx.state(Block(nnx.Rngs(0)), nnx.Param))
keys = iter(jax.random.split(jax.random.key(0), 100))
gradients = jax.tree.map(lambda x: jax.random.normal(next(keys), x.shape), parameters)
attention, dense = ("query", "key", "value", "out"), ("first", "second")


def to_muon(optimizer, part, names, of):
    """How many parameters of these modules have a moment of Muon's."""
    moments = optimizer.init(parameters).inner_states["muon"].inner_state[0].mu
    moments = moments[part] if part else moments
    return f"{sum(not isinstance(moments[name][of], optax.MaskedNode) for name in names)} of {len(names)}"


def numbers(of):
    """Axes of a kernel per head: all features on one side, heads and their channels on the other."""
    per_head = {name: MuonDimensionNumbers((0,), (1, 2)) for name in ("query", "key", "value")}
    per_head["out"] = MuonDimensionNumbers((0, 1), (2,))
    kernels = {**per_head, "first": MuonDimensionNumbers(), "second": MuonDimensionNumbers()}
    return jax.tree.map_with_path(
        lambda path, _: kernels[path[-2].key] if path[-1].key == "kernel" else None, of
    )


plain, told = muon(0.01), muon(0.01, muon_weight_dimension_numbers=numbers)
updates = plain.update(gradients, plain.init(parameters), parameters)[0]["attention"]["query"]
singular = np.linalg.svd(np.asarray(updates["bias"]), compute_uv=False)
adam = optax.adamw(0.01, nesterov=True, weight_decay=0.0)
theirs = adam.update(gradients, adam.init(parameters), parameters)[0]["attention"]["query"]["kernel"]
seen = {
    "kernels of attention to Muon": to_muon(plain, "attention", attention, "kernel"),
    "biases of attention to Muon": to_muon(plain, "attention", attention, "bias"),
    "kernels of dense layers to Muon": to_muon(plain, "", dense, "kernel"),
    "update of a bias, singular values": "equal" if singular[0] < 1.6 * singular[-1] else "spread",
    "update of a query kernel": "that of Adam" if np.allclose(updates["kernel"], theirs, rtol=1e-3) else "another",
    "with dimension numbers": to_muon(told, "attention", attention, "kernel"),
}
for name, what in seen.items():
    print(f"{name}: {what}")
sys.exit(list(seen.values()) != ["0 of 4", "3 of 4", "2 of 2", "equal", "that of Adam", "4 of 4"])
PYTHON
