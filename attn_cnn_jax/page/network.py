"""The network for the page, which computes in the browser: its weights and how they are arranged."""

import base64
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.config import spec_of
from attn_cnn_jax.data.image_files import LabelledImage
from attn_cnn_jax.models.classifier import window_side
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.page import MOST_PARAMETERS
from attn_cnn_jax.page.scores import content_parameters, linear
from attn_cnn_jax.runs.evaluate import total
from attn_cnn_jax.runs.run import Run

BATCH = 100  # images at a time, at most
MOST_ATTENTION = 2**26  # probabilities of all layers, which a browser holds at once: 256 MiB


def reason_not_to_compute(run: Run, grid: Grid, most_parameters: int = MOST_PARAMETERS) -> str | None:
    """Returns why the page cannot run the network, in words that follow "because"; None where it can."""
    parameters = sum(array.size for array in split(run.model)[1].values())
    if parameters > most_parameters:
        return f"it has {parameters:,} parameters, and the page holds {most_parameters:,} (--parameters allows more)"
    pixels = grid[0] * grid[1]
    heads = sum(block.attention.num_heads for block in run.model.blocks)
    if heads * pixels**2 > MOST_ATTENTION:
        return f"{heads} heads over {pixels} pixels are too much for a browser"
    for encoding in (encoding for block in run.model.blocks for encoding in block.attention.readers):
        if content_parameters(encoding, grid) is None:
            return f"its encoding {type(encoding).__name__} is not in attn_cnn_jax.page.scores.CONTENT"
    return None


def network_data(run: Run, grid: Grid, class_names: tuple[str, ...], test: Sequence[LabelledImage] = ()) -> dict:
    """Returns the network as the page computes it, over a grid of pixels; class names are () where they are unknown.

    `test`: `pixels`, base64 of the bytes of test images, and `labels`, numbers of their classes; None without any.
    `weights`: all arrays as one base64 text, little-endian: float16 if `half`, where that changes no number, as in the
    networks that come along, else float32. `downsample`, `window` (a side in pixels), `mean`, `std` (of the data set's
    normalisation), `epsilon` (of layer norm), `classes` (names), and `embedding`, `layers`, `norm` (of a pre-norm
    network, before the classifier; else None) and `classifier`, in which every array is `{at, shape}`: where it begins
    in the weights, in numbers, and its shape. Linear maps that follow one another are merged where that is cheaper.
    """
    config, spec = run.config, spec_of(run.config)
    model: Any = merged(run.model, [side * config.model.downsample for side in grid])
    names = all_names(class_names, config.model.num_classes)
    arrays: list[np.ndarray] = []

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray | jax.Array):
            return leaf
        at = sum(array.size for array in arrays)
        arrays.append(np.asarray(leaf, "<f4").ravel())
        return {"at": at, "shape": list(leaf.shape)}

    def norm(layer: Any) -> dict:
        return {"scale": layer.scale[...], "bias": layer.bias[...]}

    layers = [
        {
            "readers": [content_parameters(encoding, grid) for encoding in block.attention.readers],
            "value": linear(block.attention.value),
            "output": linear(block.attention.output),
            "dense": linear(block.dense),
            "attentionNorm": norm(block.attention_norm),
            "intermediate": linear(block.intermediate),
            "transformed": linear(block.output),
            "outputNorm": norm(block.output_norm),
        }
        for block in model.blocks
    ]
    network = {"embedding": linear(model.embedding), "layers": layers, "classifier": linear(model.classifier)}
    network["norm"] = None if model.norm is None else norm(model.norm)
    placed = jax.tree.map(place, network)
    weights = np.concatenate(arrays)
    half = weights.astype("<f2")
    is_half = np.array_equal(half, weights)
    pixels, labels = [image.pixels for image in test], [class_names.index(image.label) for image in test]
    return {
        "downsample": config.model.downsample,
        "window": window_side(model.embedding.kernel, config.model.image_shape[2]),
        "mean": list(spec.mean),
        "std": list(spec.std),
        "classes": list(names),
        "epsilon": model.blocks[0].attention_norm.epsilon,
        **placed,
        "test": {"pixels": as_base64(np.stack(pixels)), "labels": labels} if test else None,
        "half": is_half,
        "weights": as_base64(half if is_half else weights),
    }


def all_names(class_names: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Names of `count` classes: those that are known, and `class 4` for others."""
    return *class_names, *(f"class {n}" for n in range(len(class_names), count))


def costliest_head(run: Run, images: Sequence[LabelledImage], class_names: tuple[str, ...]) -> int | None:
    """The head of the first layer without which fewest images are classified right; of equals, with the largest loss.

    An image without a label counts as what the network takes it for. None where there are no images.
    """
    if not images:
        return None
    pixels = np.stack([image.pixels for image in images])
    predicted = run.logits(pixels, BATCH).argmax(axis=1)
    labels = [
        class_names.index(image.label) if image.label in class_names else int(n)
        for image, n in zip(images, predicted, strict=True)
    ]
    # Its output maps have the heads in front, too; they are merged once.
    skeleton, parameters, statistics = split(merged(run.model, pixels.shape[1:]))
    name, heads = "blocks.0.attention.output.kernel", run.model.blocks[0].attention.num_heads

    def score(head: int) -> tuple[int, float]:
        kernel = np.array(parameters[name])
        kernel.reshape(heads, -1, kernel.shape[-1])[head] = 0
        silent = join(skeleton, parameters | {name: jnp.asarray(kernel)}, statistics)
        result = total(iter([dataclasses.replace(run, model=silent).logits(pixels, BATCH)]), np.array(labels))
        return result.right, -result.loss

    return min(range(heads), key=score)


def as_base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
