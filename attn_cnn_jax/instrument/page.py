"""The page of a report: maps and shifted images of the user's own images, and the anatomy of every head."""

import base64
import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL.Image import Resampling

from attn_cnn_jax.data.image_files import as_image
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.instrument.adapters import Call, numbers
from attn_cnn_jax.instrument.layer import between
from attn_cnn_jax.instrument.report import Report

MOST_VALUES = 8_000_000  # of attention on a page, a byte each: maps of as many images as fit, beside those of the mean


def write(report: Report, path: str | Path, images: Any = None) -> int:
    """Writes one HTML file that opens from disk; returns the number of images on it.

    What every head hands on is there for all images whose attention can be had: those that the report keeps, and of
    networks all, which run once more. Where a patch looks is there for the mean over images, and for the first images
    in `MOST_VALUES`. Attention is stored with 8 bits, as a share of the largest in its row; images as the mean colours
    of patches. They are `(b, H, W, C)` or `(b, C, H, W)`, of any range, with 1 or 3 channels; None shows maps alone.
    """
    if len({*report.grids}) > 1 or max(layer.layout.windows for layer in report.layers_measured) > 1:
        raise UserError(f"a page needs one grid and no windows; layers have grids of {sorted({*report.grids})}")
    height, width = report.grid
    kept, values = len(report.attention[0]), sum(layer[0].size for layer in report.attention)
    mapped = min(kept, MOST_VALUES // values)
    shown = [] if images is None else as_images(images)[: report.images if report.watched else kept]
    small = [as_image(image).convert("RGB").resize((width, height), Resampling.BOX) for image in shown]
    patches = np.array([np.asarray(image) for image in small], np.float32).reshape(len(small), height * width, 3)
    content = {
        "grid": report.grid,
        "count": max(mapped, len(shown)),
        "mapped": mapped,
        "mean": [encoded(mean / mean.max(axis=-1, keepdims=True) * 255) for mean in report.mean_attention],
        "layers": [encoded(x[:mapped] / x[:mapped].max(axis=-1, keepdims=True) * 255) for x in report.attention],
        "handed": [encoded(layer) for layer in handed_on(report, patches)] if len(patches) else [],
        "anatomy": [layer.shares.round(4).tolist() for layer in report.anatomies],
        "shifts": [np.stack(layer.shift, axis=-1).round(3).tolist() for layer in report.layers_measured],
        "images": [encoded(image) for image in patches],
    }
    text = resources.files("attn_cnn_jax.instrument").joinpath("page.html").read_text("utf-8")
    write_atomically(Path(path), text.replace("CONTENT", json.dumps(content)))
    return content["count"]


def encoded(values: np.ndarray) -> str:
    """Numbers from 0 to 255 as bytes in base64."""
    return base64.b64encode(np.round(values).astype(np.uint8).tobytes()).decode()


def handed_on(report: Report, patches: Float[np.ndarray, "b p 3"]) -> list[Float[np.ndarray, "b h p 3"]]:
    """Returns by layer the colours of patches averaged by every head's attention to each image's own."""
    if len(patches) <= len(report.attention[0]):
        return [layer[: len(patches)] @ patches[:, None] for layer in report.attention]
    network, sites, *_ = report.of_network
    found, of_call = list[np.ndarray](), {sites[layer.number].call: layer.layout for layer in report.layers_measured}

    def visit(call: Call) -> None:
        if layout := of_call.get(call.number):
            found.append(between(layout.by_window(call.attention()), layout)[0] @ patches[:, None])

    network.run(visit, network.images[: len(patches)])
    return found


def as_images(images: Any) -> np.ndarray:
    """Returns images `(b, H, W, C)` uint8 from those of a network: each stretched to its own range."""
    images = numbers(images)
    channels = [axis for axis in (3, 1) if images.ndim == 4 and images.shape[axis] in (1, 3)]
    if not channels:
        raise UserError(f"images of shape {images.shape}: allowed are (b, H, W, C) and (b, C, H, W), C of 1 or 3")
    images = np.moveaxis(images, channels[0], -1)
    low, high = (f(images, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    return np.round((images - low) / np.maximum(high - low, 1e-12) * 255).astype(np.uint8)
