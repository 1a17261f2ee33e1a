#!/usr/bin/env bash
# JAX, PyTorch, transformers: "bicubic" enlarges position embeddings by two kernels, and `antialias` chooses which.
#
# Versions: torch 2.13.0 (CPU), jax and jaxlib 0.10.2, transformers 5.24.0, numpy 2.4.6; Python 3.11.
# One would expect: a vision transformer's position embeddings for a larger image are the same whichever library resizes
# them "bicubic"; and `antialias=True` changes nothing where an image grows, since there is nothing to filter.
# Seen, for DINOv2's 37x37 embeddings at 616 px (44x44), differences relative to the embeddings' deviation: transformers'
# `Dinov2Embeddings` is PyTorch's `interpolate(antialias=False)`, whose kernel has a = -0.75. `antialias=True`, which
# timm's `resample_abs_pos_embed` passes by default, takes a = -0.5 even where it enlarges; so does `jax.image.resize`,
# with and without `antialias`. At 37x37 all agree. So the same weights are two networks at any other resolution, and a
# port to JAX by `jax.image.resize` agrees with timm's and not with that of transformers.
# Where it is met: features of DINOv2 at other resolutions compared between timm and transformers, or after a port.
# Output: "same size: 0.0", "transformers - plain: 0.0", "transformers - antialias: 0.3", "jax - antialias: 0.0",
# "jax - plain: 0.3".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 jax==0.10.2 jaxlib==0.10.2 transformers==5.24.0 numpy==2.4.6 2>/dev/null
JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn.functional import interpolate
from transformers import Dinov2Config, Dinov2Model

positions = np.random.default_rng(0).normal(size=(1, 1 + 37 * 37, 8)).astype(np.float32)
grid = torch.from_numpy(positions[:, 1:]).unflatten(1, (37, 37)).permute(0, 3, 1, 2)


def by_torch(size, antialias):
    resized = interpolate(grid, size=(size, size), mode="bicubic", align_corners=False, antialias=antialias)
    return resized.permute(0, 2, 3, 1).numpy()


def by_jax(size, antialias=True):
    image = jnp.asarray(positions[:, 1:]).reshape(1, 37, 37, 8)
    return np.asarray(jax.image.resize(image, (1, size, size, 8), "bicubic", antialias=antialias))


config = Dinov2Config(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=518, patch_size=14)
embeddings = Dinov2Model(config).embeddings
with torch.no_grad():
    embeddings.position_embeddings.copy_(torch.from_numpy(positions))
    theirs = embeddings.interpolate_pos_encoding(torch.zeros(1, 1 + 44 * 44, 8), 616, 616)[:, 1:].numpy()
theirs = theirs.reshape(1, 44, 44, 8)

plain, smooth, ours = by_torch(44, False), by_torch(44, True), by_jax(44)
np.testing.assert_array_equal(ours, by_jax(44, antialias=False))
pairs = {
    "same size": (by_torch(37, False), by_torch(37, True)),
    "transformers - plain": (theirs, plain),
    "transformers - antialias": (theirs, smooth),
    "jax - antialias": (ours, smooth),
    "jax - plain": (ours, plain),
}
found = {name: round(float(np.abs(a - b).max() / positions.std()), 1) for name, (a, b) in pairs.items()}
for name, difference in found.items():
    print(f"{name}: {difference}")
sys.exit(list(found.values()) != [0.0, 0.0, 0.3, 0.0, 0.3])
PYTHON
