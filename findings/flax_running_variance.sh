#!/usr/bin/env bash
# Flax: the running variance of `nnx.BatchNorm` is that of the batch as it is, where PyTorch's is corrected for its size.
#
# Versions: flax 0.12.8, jax and jaxlib 0.10.2, torch 2.13.0 on the CPU, numpy 2.4.6; Python 3.11.
# One would expect: with momentum 0.9 in Flax and 0.1 in PyTorch, which mean the same, both layers keep the same statistics.
# Seen: in training both normalise by the batch's own variance and agree; what they keep for evaluation differs: PyTorch
# multiplies the variance by n/(n-1), n being the values of a channel in the batch, Flax does not. Of 4 images of 1x1 pixels
# the kept variances go to ones whose ratio is 4/3: outputs in evaluation differ by 15%. Of 4 images of 32x32 it is 1.0002.
# Where it is met: a network ported to Flax gives the same loss and gradients in training, and other results in
# evaluation; most where maps are small and batches too: last blocks of a ResNet, norms of pooled features.
# Output: n, the ratio of kept variances after 200 batches, n/(n-1), for two sizes; then the difference in training.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/pip" install -q torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import torch
from flax import nnx

right, largest = True, 0.0
for side in (1, 32):
    ours, theirs = nnx.BatchNorm(3, momentum=0.9, epsilon=1e-5, rngs=nnx.Rngs(0)), torch.nn.BatchNorm2d(3, momentum=0.1)
    for seed in range(200):
        x = np.random.default_rng(seed).normal(size=(4, side, side, 3)).astype(np.float32)
        pair = np.asarray(ours(x)), theirs(torch.tensor(x.transpose(0, 3, 1, 2))).detach().numpy().transpose(0, 2, 3, 1)
        largest = max(largest, float(np.abs(pair[0] - pair[1]).max()))
    n, ratio = 4 * side**2, theirs.running_var.numpy() / np.asarray(ours.var[...])
    print(f"{n} values: {ratio.mean():.4f}, n/(n-1) is {n / (n - 1):.4f}")
    right &= bool(np.allclose(ratio, n / (n - 1), rtol=1e-4))
print(f"largest difference of outputs in training: {largest:.1g}")
sys.exit(not (right and largest < 1e-3))
PYTHON
