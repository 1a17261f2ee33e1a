#!/usr/bin/env bash
# JAX and PyTorch: a query whose mask allows no key has the mean of all values in JAX, zeros in PyTorch.
#
# Versions: torch 2.13.0 (CPU), jax and jaxlib 0.10.2, flax 0.12.7, numpy 2.4.6; Python 3.11.
# One would expect: functions of one name with one boolean mask (true: may attend) agree; where a query has no key left,
# that both give zeros, or both NaN.
# Seen: `torch.nn.functional.scaled_dot_product_attention` gives zeros. `jax.nn.dot_product_attention` and
# `flax.nnx.dot_product_attention` replace masked scores by a large negative number, of which the softmax makes equal
# weights: the mean of all values, also of those that the mask hides, whose gradients it passes on. In PyTorch the same
# mask as a tensor of 0 and -inf gives NaN with the scores written out as softmax(q k^T + mask) v.
# Where it is met: windows filled up at the border of an image, packed sequences, register or padding tokens. In a port
# what is hidden leaks into tokens that are thrown away later, or are not.
# Output: "torch: zeros", "written out: nan", "jax: mean of hidden values", "flax: mean of hidden values",
# "gradient to hidden values, jax: yes".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 jax==0.10.2 jaxlib==0.10.2 flax==0.12.7 numpy==2.4.6 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch.nn import functional

random = np.random.default_rng(0)
query, key, value = (random.normal(size=(1, 3, 1, 4)).astype(np.float32) for _ in range(3))  # image, token, head, channel
mask = np.ones((1, 1, 3, 3), bool)
mask[0, 0, 1] = False  # the query in the middle has no key

q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in (query, key, value))
fused = functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.from_numpy(mask))[0, 0, 1].numpy()
written = ((q @ k.mT / 2).masked_fill(~torch.from_numpy(mask), -torch.inf).softmax(dim=-1) @ v)[0, 0, 1].numpy()
mean = value[0, :, 0].mean(axis=0)


def middle(attend):
    return lambda value: attend(jnp.asarray(query), jnp.asarray(key), value, mask=jnp.asarray(mask))[0, 1, 0]


def said(row):
    if np.isnan(row).all():
        return "nan"
    return "zeros" if not np.any(row) else "mean of hidden values" if np.allclose(row, mean, atol=1e-6) else "other"


found = {
    "torch": said(fused),
    "written out": said(written),
    "jax": said(np.asarray(middle(jax.nn.dot_product_attention)(jnp.asarray(value)))),
    "flax": said(np.asarray(middle(nnx.dot_product_attention)(jnp.asarray(value)))),
}
gradient = jax.grad(lambda value: middle(jax.nn.dot_product_attention)(value).sum())(jnp.asarray(value))
found["gradient to hidden values, jax"] = "yes" if np.any(gradient) else "no"
for name, text in found.items():
    print(f"{name}: {text}")
expected = ["zeros", "nan", "mean of hidden values", "mean of hidden values", "yes"]
sys.exit(list(found.values()) != expected)
PYTHON
