#!/usr/bin/env bash
# Flax: dropout of `nnx.MultiHeadAttention` zeroes the same pairs of tokens in every head of every image of a batch.
#
# Versions: flax 0.12.8, jax and jaxlib 0.10.2, torch 2.13.0 on the CPU; Python 3.11.
# One would expect: masks of their own for images and heads, as `torch.nn.functional.scaled_dot_product_attention`, BERT and
# ViT have them, since `dropout_rate` alone is given.
# Seen: `broadcast_dropout=True` is the default, and shares one mask among all axes but the last two, so that a batch of
# 8 images with 4 heads draws one mask for 32. Equal images of a batch get equal outputs in training. Gradients of a batch
# are noisier than the rate says: means over a batch do not average over masks. `broadcast_dropout=False` draws 32.
# Where it is met: a vision transformer that is ported from PyTorch with its dropout rates.
# Output: "flax, as it comes: 1 masks, equal images differ by 0", "flax, broadcast_dropout=False: 32 masks, equal images
# differ", "torch: 32 masks".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/pip" install -q torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from flax.nnx.nn.attention import dot_product_attention_weights

IMAGES, HEADS, TOKENS, CHANNELS = 8, 4, 16, 32


def masks(kept):
    """How many different masks there are among `(images, heads, tokens, tokens)`."""
    return len({mask.tobytes() for mask in np.asarray(kept).reshape(-1, TOKENS, TOKENS)})


def of_flax(**options):
    """Masks that attention among equal tokens shows, and how far the outputs of equal images lie apart."""
    rates = {"dropout_rate": 0.5, "deterministic": False}
    layer = nnx.MultiHeadAttention(HEADS, CHANNELS, decode=False, rngs=nnx.Rngs(0), **rates, **options)
    x = jnp.tile(jax.random.normal(jax.random.key(1), (1, TOKENS, CHANNELS)), (IMAGES, 1, 1))
    y = layer(x)
    q = jnp.ones((IMAGES, TOKENS, HEADS, CHANNELS // HEADS))
    kept = dot_product_attention_weights(
        q, q, dropout_rng=jax.random.key(2), broadcast_dropout=layer.broadcast_dropout, **rates
    )  # what the layer calls
    return masks(kept > 0), float(jnp.abs(y - y[:1]).max())


default, equal = of_flax()
asked, apart = of_flax(broadcast_dropout=False)
torch.manual_seed(0)
q = torch.zeros(IMAGES, HEADS, TOKENS, 8)
values = torch.eye(TOKENS).expand(IMAGES, HEADS, TOKENS, TOKENS)  # the output is the attention itself
of_torch = masks(torch.nn.functional.scaled_dot_product_attention(q, q, values, dropout_p=0.5).numpy() > 0)
print(f"flax, as it comes: {default} masks, equal images differ by {equal:.0f}")
print(f"flax, broadcast_dropout=False: {asked} masks, equal images differ" + ("" if apart > 0.01 else " by 0"))
print(f"torch: {of_torch} masks")
sys.exit((default, equal, asked, apart > 0.01, of_torch) != (1, 0.0, 32, True, 32))
PYTHON
