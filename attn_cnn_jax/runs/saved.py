"""What checkpoints and exported weights share, without Orbax: what is read of either, and checksums."""

import json
import zlib
from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.data.sets import Fingerprint

# The step of a network, its configuration, the network, its data if known.
Saved = tuple[int, ConfigDict, nnx.Module, Fingerprint | None]


def checksum(tree: Any) -> int:
    """Returns the CRC-32 of all arrays of a tree, in the order of its leaves."""
    crc = 0
    for leaf in jax.tree.leaves(tree):
        crc = zlib.crc32(np.ascontiguousarray(jax.device_get(leaf)).view(np.uint8).data, crc)
    return crc


def checksum_of_text(value: dict | None) -> int:
    """Returns the CRC-32 of plain values, by what they look like in JSON."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())
