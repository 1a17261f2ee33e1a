#!/usr/bin/env bash
# PyTorch and transformers hand out the attention of training with its dropout in it, Flax the attention before.
#
# Versions: torch 2.13.0 (CPU), transformers 5.24.0, flax 0.12.8, jax and jaxlib 0.10.2, numpy 2.4.6; Python 3.11.
# One would expect: what `need_weights=True`, `output_attentions=True` and `sow_weights=True` return is a softmax: the probabilities
# of each query add to 1; dropout, as it says, is something that is done to them afterwards.
# Seen: in training mode `torch.nn.MultiheadAttention` and `ViTModel` (eager) return the array after dropout: with a rate of 0.5
# half of it is zero, the rest doubled, and the sums of rows lie between 0.3 and 1.9. Nothing is said. Flax's
# `nnx.MultiHeadAttention` returns what it was before: sums of 1, and no zeros. In evaluation all three return the softmax.
# Where it is met: entropies, distances or a loss on attention that are computed while a network trains: half of the keys
# seem never looked at, and attention that a loss compares with that of a teacher differs by chance at every step.
# Output: "torch: training sums not 1, half zeros; evaluation sums 1, no zeros", the same for transformers, and
# "flax: training sums 1, no zeros; evaluation sums 1, no zeros".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 transformers==5.24.0 2>/dev/null
"$folder/venv/bin/pip" install -q torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu 2>/dev/null
JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON' 2>/dev/null
import sys

import jax
import numpy as np
import torch
from flax import nnx
from transformers import ViTConfig, ViTModel

TOKENS, CHANNELS, HEADS, RATE = 17, 32, 4, 0.5


def torch_weights(training):
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(CHANNELS, HEADS, dropout=RATE, batch_first=True).train(training)
    x = torch.randn(2, TOKENS, CHANNELS)
    return layer(x, x, x, need_weights=True, average_attn_weights=False)[1].detach().numpy()


def vit_weights(training):
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=CHANNELS,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        intermediate_size=CHANNELS,
        image_size=32,
        patch_size=8,
        attention_probs_dropout_prob=RATE,
        attn_implementation="eager",
    )
    model = ViTModel(config, add_pooling_layer=False).train(training)
    return model(torch.randn(2, 3, 32, 32), output_attentions=True).attentions[0].detach().numpy()


def flax_weights(training):
    options = {"dropout_rate": RATE, "broadcast_dropout": False, "deterministic": not training, "decode": False}
    layer = nnx.MultiHeadAttention(HEADS, CHANNELS, rngs=nnx.Rngs(0), **options)
    layer(jax.random.normal(jax.random.key(1), (2, TOKENS, CHANNELS)), sow_weights=True)
    (weights,) = jax.tree.leaves(nnx.state(layer, nnx.Intermediate))
    return np.asarray(weights)


def words(weights):
    assert weights.shape == (2, HEADS, TOKENS, TOKENS)
    sums = "1" if np.abs(weights.sum(-1) - 1).max() < 1e-5 else "not 1"
    share = (weights == 0).mean()
    return f"sums {sums}, {'no' if share == 0 else 'half' if abs(share - RATE) < 0.05 else 'other'} zeros"


seen = []
for name, weights in (("torch", torch_weights), ("transformers", vit_weights), ("flax", flax_weights)):
    seen.append(f"{name}: training {words(weights(True))}; evaluation {words(weights(False))}")
print("\n".join(seen))
right = "evaluation sums 1, no zeros"
sys.exit(
    seen
    != [
        f"torch: training sums not 1, half zeros; {right}",
        f"transformers: training sums not 1, half zeros; {right}",
        f"flax: training sums 1, no zeros; {right}",
    ]
)
PYTHON
