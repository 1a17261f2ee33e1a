#!/usr/bin/env bash
# transformers: `interpolate_pos_encoding=True` takes a grid of 4x16 patches for one of 8x8, and mixes up its positions.
#
# Versions: transformers 5.24.0, torch 2.13.0 (CPU), numpy 2.4.6; Python 3.11.
# One would expect: `ViTModel` of images of 16x64 pixels, `image_size=(16, 64)`, computes the same with and without
# `interpolate_pos_encoding=True` at its own size, and an image of twice the size has its positions stretched.
# Seen: the side of the grid that was trained is taken as the root of the number of patches. 4x16 patches are 64, so
# the embeddings are read as 8x8 of them and resized to 4x16: at its own size, where nothing is to resize, every patch has
# a mixture of others' positions. Nothing is said. Where the number is no square, as of 4x8 patches, it is a RuntimeError;
# a square network is equal at its own size.
# Where it is met: vision transformers of spectrograms, text lines or panoramas, at another size or with the option always on.
# Output: "8x8 patches: equal", "4x16 patches: other positions", "4x8 patches: RuntimeError", "4x16 read as 8x8: equal".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.24.0 numpy==2.4.6 2>/dev/null
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON' 2>/dev/null
import sys

import torch
from torch.nn.functional import interpolate
from transformers import ViTConfig, ViTModel

torch.manual_seed(0)


def network(height, width):
    """A vision transformer of patches of 4 pixels whose position embeddings are no zeros."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = ViTModel(ViTConfig(image_size=(height, width), patch_size=4, **sizes)).eval()
    torch.nn.init.normal_(model.embeddings.position_embeddings)
    return model


@torch.no_grad()
def at_its_own_size(height, width):
    """What interpolation to the size that a network has makes of it."""
    model, images = network(height, width), torch.randn(1, 3, height, width)
    try:
        asked = model(images, interpolate_pos_encoding=True).last_hidden_state
    except RuntimeError as error:
        return type(error).__name__
    return "equal" if torch.allclose(asked, model(images).last_hidden_state, atol=1e-5) else "other positions"


@torch.no_grad()
def as_a_square():
    """Whether the positions used for 4x16 patches are those of 8x8, resized."""
    embeddings = network(16, 64).embeddings
    used = embeddings.interpolate_pos_encoding(torch.zeros(1, 65, 16), 16, 64)[0, 1:]
    square = embeddings.position_embeddings[:, 1:].unflatten(1, (8, 8)).permute(0, 3, 1, 2)
    resized = interpolate(square, size=(4, 16), mode="bicubic", align_corners=False)
    return "equal" if torch.allclose(used, resized[0].flatten(1).T, atol=1e-5) else "not equal"


seen = {
    "8x8 patches": at_its_own_size(32, 32),
    "4x16 patches": at_its_own_size(16, 64),
    "4x8 patches": at_its_own_size(16, 32),
    "4x16 read as 8x8": as_a_square(),
}
for name, what in seen.items():
    print(f"{name}: {what}")
sys.exit(list(seen.values()) != ["equal", "other positions", "RuntimeError", "equal"])
PYTHON
