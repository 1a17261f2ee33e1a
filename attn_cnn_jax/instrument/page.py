"""The page of a report: maps and shifted images of the user's own images, and the anatomy of every head."""

import base64
import io
import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.instrument.report import Report

MOST_VALUES = 8_000_000  # of attention on a page, a byte each: as many images as fit


def write(report: Report, path: str | Path, images: Any = None) -> int:
    """Writes one HTML file that opens from disk; returns the number of images on it.

    Attention is stored with 8 bits, as a share of the largest in its row.

    Args:
      report: of any network.
      path: of the file.
      images: `(b, H, W, C)` or `(b, C, H, W)`, of any range, with 1 or 3 channels; None shows maps alone.
    """
    values = sum(layer[0].size for layer in report.attention)
    count = min(len(report.attention[0]), MOST_VALUES // values)
    if not count:
        raise UserError(f"one image has {values:,} values of attention: a page holds at most {MOST_VALUES:,}")
    layers = []
    for attention in report.attention:
        most = attention[:count].max(axis=-1, keepdims=True)
        layers.append(packed(np.round(attention[:count] / most * 255).astype(np.uint8)))
    content = {
        "grid": report.grid,
        "count": count,
        "layers": layers,
        "heads": [len(layer.shares) for layer in report.anatomies],
        "anatomy": [layer.shares.round(4).tolist() for layer in report.anatomies],
        "pictures": [] if images is None else [as_png(image) for image in as_images(images)[:count]],
    }
    # "<" could end the script.
    text = resources.files("attn_cnn_jax.instrument").joinpath("page.html").read_text("utf-8")
    write_atomically(Path(path), text.replace("CONTENT", json.dumps(content).replace("<", "\\u003c")))
    return count


def packed(array: np.ndarray) -> str:
    """Returns bytes as base64."""
    return base64.b64encode(array.tobytes()).decode()


def as_images(images: Any) -> np.ndarray:
    """Returns images `(b, H, W, C)` uint8 from those of a network: each stretched to its own range."""
    images = np.asarray(images.detach().cpu() if hasattr(images, "detach") else images)
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[-1] not in (1, 3):
        images = np.moveaxis(images, 1, -1)
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise UserError(f"images of shape {images.shape}: allowed are (b, H, W, C) and (b, C, H, W), C of 1 or 3")
    if images.dtype == np.uint8:
        return images
    low, high = (f(images, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    return np.round((images - low) / np.maximum(high - low, 1e-12) * 255).astype(np.uint8)


def as_png(image: np.ndarray) -> str:
    """Returns an image as the address of a PNG."""
    file = io.BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
