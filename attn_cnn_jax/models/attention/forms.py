"""In which order of axes a platform computes attention. All give the same numbers; only the time differs.

| attention | CPUs | GPUs | TPUs |
| --- | --- | --- | --- |
| dense, the same for all pictures | `dense` | `pixels_first` | `pixels_first` |
| a product of rows and columns | `factorised` | `pixels_first` | `pixels_first` |
| dense, from content | `chunks` | `merged_content` | `heads_first` |
| blocks of query rows | `blocked` | `blocked` | `blocked` |

Where values have maps of their own, the second row is `factorised` everywhere. Content whose maps cannot be merged, as
under a gate, is `dense` on GPUs and TPUs.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from attn_cnn_jax.models.attention.dense import Maps, dense
from attn_cnn_jax.models.attention.factorised import factorised
from attn_cnn_jax.models.attention.heads_first import dense_heads_first
from attn_cnn_jax.models.attention.merged_content import MergedMaps, dense_merged
from attn_cnn_jax.models.attention.pixels_first import attended_by_factors, dense_pixels_first
from attn_cnn_jax.models.layers import dropout_mask


def shared(
    probabilities: Float[Array, "h q p"], x: Float[Array, "b H W d"], maps: Maps, platform: str
) -> Float[Array, "b H W o"]:
    """`sum_h attention_h X W_val^(h) W_out^(h)` from probabilities that all pictures share, `q = p = H W`."""
    batch, height, width, channels = x.shape
    if platform == "cpu":
        attended = dense(probabilities, x.reshape(batch, height * width, channels), maps)
        return attended.reshape(batch, height, width, -1)
    # XLA takes transposes that follow one another for none.
    pixels = jnp.moveaxis(x, 0, 2).reshape(height * width, batch, channels)
    attended = dense_pixels_first(probabilities, pixels, maps)
    return jnp.moveaxis(attended.reshape(height, width, batch, -1), 2, 0)


def by_factors(
    rows: Float[Array, "h i k"], columns: Float[Array, "h j l"], x: Float[Array, "b k l d"], maps: Maps, platform: str
) -> Float[Array, "b i j o"]:
    """The same from row and column probabilities; no array has two pixel axes."""
    if platform == "cpu" or maps.value is not None:
        return factorised(rows, columns, x, maps, platform=platform)
    pixels = jnp.moveaxis(x, 0, 2)
    attended = attended_by_factors(rows.astype(x.dtype), columns.astype(x.dtype), pixels, maps.output)
    return jnp.moveaxis(attended, 2, 0)


def merged_content(
    x: Float[Array, "b H W d"],
    merged: MergedMaps,
    positions: Float[Array, "h q p"] | None,
    output: Float[Array, "h d o"],
    key: PRNGKeyArray | None,
    rate: float,
    platform: str,
) -> Float[Array, "b H W o"]:
    """The same on GPUs and TPUs from content scores whose maps are merged, after dropout.

    Args:
      x: pictures.
      merged: of the content scores.
      positions: scores that are added; None for none.
      output: merged maps of values and output.
      key: draws the mask of dropout; None in evaluation.
      rate: of dropout.
      platform: "gpu" or "tpu".
    """
    batch, height, width, channels = x.shape
    pixels, heads = height * width, len(output)
    on_gpus = platform == "gpu"
    queries = (pixels, heads) if on_gpus else (heads, pixels)
    keep = dropout_mask(key, (batch, *queries, pixels), rate, platform)
    attended = dense_merged if on_gpus else dense_heads_first
    flat = x.reshape(batch, pixels, channels)
    return attended(flat, merged, positions, output, *keep).reshape(batch, height, width, -1)
