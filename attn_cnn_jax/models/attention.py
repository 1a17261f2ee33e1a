"""Multi-head self-attention over pixels (Flax NNX), thin over the score functions and kernels.

`MHSA(X)_q = sum_h head_h(X)_q W_out^(h) + b_out`, `head_h(X)_q = sum_k softmax_k(score_h(q, .))_k X_k W_val^(h)`.
Which score: an `Encoding` of encodings.py, alone or with a content term added.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from attn_cnn_jax.models import kernels
from attn_cnn_jax.models.encodings import Content, Encoding
from attn_cnn_jax.models.layers import dropout, linear
from attn_cnn_jax.models.scores import at_least_float32


class SelfAttention(nnx.Module):
    """One layer of multi-head self-attention on pictures `(b, H, W, D)`.

    Attributes:
      position: the encoding.
      content: `q . k / sqrt(D_h)` added to its scores, or None.
      gate: `(h,)`, or None where scores are added. Its sigmoid `g` weighs two softmaxes instead, as in ConViT:
        `g softmax(position) + (1 - g) softmax(content)`; starts at 1, so `g = 0.73`.
      value: per-head value maps `W_val`, only where the head size is below hidden and output size; else None
        and `output` holds the merged maps `W^(h) = W_val^(h) W_out^(h)`.
      output: linear map from the concatenated head averages, head by head, to `output_size` (`D`) channels.
    """

    def __init__(
        self,
        position: Encoding,
        *,
        content: bool,
        num_heads: int,
        hidden_size: int,
        head_size: int,
        dropout_rate: float,
        kernel: str,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        output_size: int | None = None,
        gated: bool = False,
    ):
        self.position = position
        self.content = Content(num_heads, hidden_size, head_size, dtype=dtype, rngs=rngs) if content else None
        self.gate = nnx.Param(jnp.ones(num_heads, at_least_float32(dtype))) if gated else None
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.kernel = kernel
        output_size = hidden_size if output_size is None else output_size
        merged = head_size >= min(hidden_size, output_size)
        self.value = (
            None if merged else linear(hidden_size, num_heads * head_size, use_bias=False, dtype=dtype, rngs=rngs)
        )
        averaged = num_heads * (hidden_size if merged else head_size)
        self.output = linear(averaged, output_size, dtype=dtype, rngs=rngs)

    @property
    def depends_on_content(self) -> bool:
        """Whether the attention differs from picture to picture."""
        return self.content is not None or self.position.depends_on_content

    @property
    def factorises(self) -> bool:
        """Whether the attention is a product of a row and a column softmax."""
        return self.position.factorises and self.content is None

    def position_terms(self, height: int, width: int, query_rows: jax.Array | None = None):
        """Score terms that depend on the two pixels alone: a dict of `(h, i, j, k, l)`."""
        rows = jnp.arange(height) if query_rows is None else query_rows
        return self.position.position_terms(height, width, rows)

    def content_terms(self, x: jax.Array, query_rows: jax.Array | None = None):
        """Score terms that depend on the picture `(b, H, W, D)`: a dict; they broadcast to `(b, h, i, j, k, l)`."""
        rows = jnp.arange(x.shape[1]) if query_rows is None else query_rows
        terms = self.position.content_terms(x, rows)
        return terms if self.content is None else terms | self.content.content_terms(x, rows)

    def probabilities(self, x: jax.Array) -> jax.Array:
        """Attention of every head.

        Args:
          x: `(b, H, W, D)`; of a position-only layer only its shape is read.

        Returns:
          `(h, q, p)` where it does not depend on content, else `(b, h, q, p)`, float32 or wider.
        """
        height, width = x.shape[1:3]
        if self.factorises:
            return kernels.outer(*map(kernels.softmax, self.position.axis_scores(height, width)))
        terms = [term[None] for term in self.position_terms(height, width).values()]
        if not self.depends_on_content:
            return softmax_of_sum(terms, height, width)[0]
        content = list(self.content_terms(x).values())
        if self.gate is None:
            return softmax_of_sum(terms + content, height, width)
        gate = jax.nn.sigmoid(self.gate[...])[None, :, None, None]
        return gate * softmax_of_sum(terms, height, width) + (1 - gate) * softmax_of_sum(content, height, width)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """`(b, H, W, D) -> (b, H, W, D)`; `key` is given in training and draws the dropout mask.

        Where attention does not depend on the picture, one mask serves the whole batch.
        """
        batch, height, width, _ = x.shape
        values = x if self.value is None else self.value(x).reshape(batch, height, width, self.num_heads, -1)
        drops = key is not None and self.dropout_rate > 0
        if self.factorises and not drops and kernels.choose(self.kernel, height * width) == "factorised":
            axes = map(kernels.softmax, self.position.axis_scores(height, width))
            averages = kernels.factorised(*axes, values)
        else:
            probabilities = dropout(key, self.probabilities(x), self.dropout_rate)
            averages = kernels.dense(probabilities, values.reshape(batch, height * width, *values.shape[3:]))
        return self.output(averages.reshape(batch, height, width, -1))


def softmax_of_sum(terms: list[jax.Array], height: int, width: int) -> jax.Array:
    """Attention of score terms that broadcast to `(b, h, i, j, k, l)`: `(b, h, q, p)`."""
    scores = functools.reduce(jnp.add, terms)
    scores = jnp.broadcast_to(scores, (*scores.shape[:2], height, width, height, width))
    return kernels.softmax(scores.reshape(*scores.shape[:2], height * width, height * width))
