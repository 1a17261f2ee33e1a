"""Networks with fewer linear maps, for inference."""

from collections.abc import Sequence

import jax
from flax import nnx

from attn_cnn_jax.models.attention.layer import Model, SelfAttention
from attn_cnn_jax.models.classifier import AttentionClassifier


def merged(model: Model, image_shape: Sequence[int]) -> Model:
    """A copy in which linear maps that follow one another are one; its logits are the same to rounding.

    In every block `dense` is merged into the attention's output map, `(Y W + b) W' + b' = Y (W W') + (b W' + b')`, and
    value maps too where that is cheaper for images of such rows and columns. For inference: the maps are not those that
    were trained. Other networks than attention classifiers are returned as they are. Works on tracers too.
    """
    if not isinstance(model, AttentionClassifier):
        return model
    model, pixels = nnx.clone(model), image_shape[0] * image_shape[1] // model.downsample**2
    with jax.default_matmul_precision("highest"):  # rounding to fewer bits would show in every logit
        for block in model.blocks:
            if not isinstance(block.attention, SelfAttention):
                continue  # what stands in for it has maps of its own
            layer, output, dense = block.attention, block.attention.output, block.dense
            if dense is not None:
                assert output.bias is not None
                assert dense.bias is not None
                output.bias[...] = output.bias[...] @ dense.kernel[...] + dense.bias[...]
                output.kernel[...] = output.kernel[...] @ dense.kernel[...]
                block.dense = None
            if layer.value is not None and merging_pays(layer, pixels):
                maps = layer.merged_maps()
                output.kernel = nnx.Param(maps.reshape(-1, maps.shape[2]))
                layer.value = None
    return model


def merging_pays(layer: SelfAttention, pixels: int) -> bool:
    """Whether averaging pixels (`D` channels per head) costs less than averaging values (`D_h`) and their map.

    Compared are a head's multiply-adds for one pixel: `pixels` times the channels that are averaged, and the maps.
    """
    assert layer.value is not None
    value, output = layer.value.kernel, layer.output.kernel
    hidden, head, out = value.shape[0], value.shape[1] // layer.num_heads, output.shape[1]
    return hidden * (pixels + out) < head * (hidden + pixels + out)
