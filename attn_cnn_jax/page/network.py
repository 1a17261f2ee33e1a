"""The network for the page, which computes in the browser: its weights and how they are arranged."""

import base64
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from attn_cnn_jax.arrays import Grid
from attn_cnn_jax.config import spec_of
from attn_cnn_jax.models.classifier import Block
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.page.images import LabelledImage
from attn_cnn_jax.page.scores import content_parameters, linear
from attn_cnn_jax.runs.run import Run

MOST_PARAMETERS = 3_000_000  # 16 MB of text
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
    for block in run.model.blocks:
        for encoding in block.attention.readers:
            if content_parameters(encoding, grid) is None:
                name = type(encoding).__name__
                return f"its encoding {name} is not in attn_cnn_jax.page.scores.CONTENT"
    return None


def network_data(run: Run, grid: Grid, class_names: tuple[str, ...], test: Sequence[LabelledImage] = ()) -> dict:
    """Returns the network as the page computes it.

    Args:
      run: the run.
      grid: rows and columns of pixels that attention works on.
      class_names: one per class, or none where they are unknown.
      test: labelled pictures whose accuracy the page counts while a visitor changes the network.

    Returns:
      `test`: `pixels`, base64 of the pictures' bytes, and `labels`, numbers of their classes; None without any.
      `weights`: all arrays as one base64 text of little-endian float32. `downsample`, `mean`, `std` (of the data set's
      normalisation), `epsilon` (of layer norm), `classes` (names),
      `embedding`, `layers`, `classifier`, in which every array is `{at, shape}`: where it begins in the weights, in
      numbers, and its shape. Linear maps that follow one another are merged where that is cheaper.
    """
    config, pack = run.config, Packer()
    model: Any = merged(run.model, [side * config.model.downsample for side in grid])
    spec = spec_of(config)
    names = *class_names, *(f"class {n}" for n in range(len(class_names), config.model.num_classes))
    return {
        "downsample": config.model.downsample,
        "mean": list(spec.mean),
        "std": list(spec.std),
        "classes": list(names),
        "epsilon": model.blocks[0].attention_norm.epsilon,
        "embedding": pack(linear(model.embedding)),
        "layers": [pack(layer_data(block, grid)) for block in model.blocks],
        "classifier": pack(linear(model.classifier)),
        "test": test_data(test, class_names) if test else None,
        "weights": pack.text(),
    }


def test_data(pictures: Sequence[LabelledImage], class_names: tuple[str, ...]) -> dict:
    """Returns labelled pictures as bytes, and the numbers of their classes."""
    pixels = np.stack([picture.pixels for picture in pictures])
    labels = [class_names.index(picture.label) for picture in pictures]
    return {"pixels": base64.b64encode(pixels.tobytes()).decode("ascii"), "labels": labels}


class Packer:
    """Puts arrays one after the other, and says where each is."""

    def __init__(self):
        self.arrays: list[np.ndarray] = []
        self.size = 0

    def __call__(self, value: Any) -> Any:
        """Returns a tree with every array as `{at, shape}`."""
        if isinstance(value, dict):
            return {name: self(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self(item) for item in value]
        if not isinstance(value, np.ndarray | jax.Array):
            return value
        at = self.size
        self.arrays.append(np.asarray(value, "<f4").ravel())
        self.size += value.size
        return {"at": at, "shape": list(value.shape)}

    def text(self) -> str:
        """Returns all arrays as base64."""
        return base64.b64encode(np.concatenate(self.arrays).tobytes()).decode("ascii")


def layer_data(block: Block, grid: Grid) -> dict:
    """Returns the arrays of one block by name; position scores and gates stand with the layers of the page."""
    attention = block.attention
    return {
        "readers": [content_parameters(encoding, grid) for encoding in attention.readers],
        "value": None if attention.value is None else linear(attention.value),
        "output": linear(attention.output),
        "dense": None if block.dense is None else linear(block.dense),
        "attentionNorm": norm(block.attention_norm),
        "intermediate": linear(block.intermediate),
        "transformed": linear(block.output),
        "outputNorm": norm(block.output_norm),
    }


def norm(layer: nnx.LayerNorm) -> dict:
    """Returns scale and bias of a layer norm."""
    assert layer.scale is not None
    assert layer.bias is not None
    return {"scale": layer.scale[...], "bias": layer.bias[...]}
