"""The page of a report: maps and shifted images of the user's own images, and the anatomy of every head."""

import base64
import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Resampling

from attn_cnn_jax.data.image_files import as_image
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.instrument.report import Report

MOST_VALUES = 8_000_000  # of attention on a page, a byte each: as many images as fit


def write(report: Report, path: str | Path, images: Any = None) -> int:
    """Writes one HTML file that opens from disk; returns the number of images on it.

    Attention is stored with 8 bits, as a share of the largest in its row; images as the mean colours of patches. They
    are `(b, H, W, C)` or `(b, C, H, W)`, of any range, with 1 or 3 channels; None shows maps alone.
    """
    values = sum(layer[0].size for layer in report.attention)
    count = min(len(report.attention[0]), MOST_VALUES // values)
    if not count:
        raise UserError(f"one image has {values:,} values of attention: a page holds at most {MOST_VALUES:,}")
    layers = [layer[:count] / layer[:count].max(axis=-1, keepdims=True) for layer in report.attention]
    shown = [] if images is None else as_images(images)[:count]
    height, width = report.grid
    patches = [as_image(image).convert("RGB").resize((width, height), Resampling.BOX) for image in shown]
    content = {
        "grid": report.grid,
        "count": count,
        "layers": [base64.b64encode(np.round(255 * layer).astype(np.uint8).tobytes()).decode() for layer in layers],
        "anatomy": [layer.shares.round(4).tolist() for layer in report.anatomies],
        "images": [base64.b64encode(image.tobytes()).decode() for image in patches],
    }
    text = resources.files("attn_cnn_jax.instrument").joinpath("page.html").read_text("utf-8")
    write_atomically(Path(path), text.replace("CONTENT", json.dumps(content)))
    return count


def as_images(images: Any) -> np.ndarray:
    """Returns images `(b, H, W, C)` uint8 from those of a network: each stretched to its own range."""
    images = np.asarray(images.detach().cpu() if hasattr(images, "detach") else images)
    channels = [axis for axis in (3, 1) if images.ndim == 4 and images.shape[axis] in (1, 3)]
    if not channels:
        raise UserError(f"images of shape {images.shape}: allowed are (b, H, W, C) and (b, C, H, W), C of 1 or 3")
    images = np.moveaxis(images, channels[0], -1)
    low, high = (f(images, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    return np.round((images - low) / np.maximum(high - low, 1e-12) * 255).astype(np.uint8)
