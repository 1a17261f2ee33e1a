"""Content scores, which "learned + content" adds to positions."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention import scores
from attn_cnn_jax.models.attention.encoding import Encoding, Projections, Rows, at_rows, register
from attn_cnn_jax.models.attention.scores import MergedMaps
from attn_cnn_jax.models.layers import flattened, linear


class QueryKey(Encoding):
    """Scores `q . k / sqrt(D_h)` of queries and keys that a subclass may change in `project`.

    Attributes:
      query, key: linear maps `D -> h D_h`.
    """

    head_axis = {"query.kernel": 1, "query.bias": 0, "key.kernel": 1, "key.bias": 0}

    def __init__(
        self,
        num_heads: int,
        hidden_size: int,
        head_size: int,
        *,
        use_bias: bool = True,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.num_heads = num_heads
        self.query, self.key = (
            linear(hidden_size, num_heads * head_size, use_bias=use_bias, dtype=dtype, rngs=rngs) for _ in range(2)
        )

    def project(self, x: Float[Array, "b H W d"]) -> Projections:
        return Projections(*(split_heads(flattened(layer, x), self.num_heads) for layer in (self.query, self.key)))

    def content_terms(self, projections: Projections, query_rows: Rows) -> dict[str, Float[Array, "..."]]:
        return {"content": content_scores(at_rows(projections.query, query_rows), projections.key)}


@register("content")
class Content(QueryKey):
    """Content scores `q . k / sqrt(D_h)`, with biases; as an encoding alone it knows no positions."""

    def merged_content(self) -> MergedMaps | None:
        bias, channels = self.query.bias, self.query.in_features
        if bias is None or self.query.out_features < self.num_heads * channels:
            return None  # smaller heads: merged, they would be larger
        query, key = (
            layer.kernel[...].reshape(layer.in_features, self.num_heads, -1) for layer in (self.query, self.key)
        )
        scale = query.shape[-1] ** -0.5
        # `einsum` sums over axes in the order of their letters: `x` and `y` are channels of the query and of the key.
        product = jnp.einsum("xhc,yhc->xhy", query, key) * scale
        return MergedMaps(product, jnp.einsum("hc,yhc->hy", bias[...].reshape(self.num_heads, -1), key) * scale)


def split_heads(x: Float[Array, "b i j f"], num_heads: int) -> Float[Array, "b h i j c"]:
    """Separates heads, and puts them before pixels: `f = h c`."""
    return jnp.moveaxis(x.reshape(*x.shape[:-1], num_heads, -1), -2, 1)


def content_scores(query: Float[Array, "b h i j c"], key: Float[Array, "b h k l c"]) -> Float[Array, "b h i j k l"]:
    """`scores.content` over heads and images."""
    pixels = query.shape[2:4], key.shape[2:4]
    flat = [x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in (query, key)]
    result = jax.vmap(jax.vmap(scores.content))(*flat)
    return result.reshape(*result.shape[:2], *pixels[0], *pixels[1])
