"""Multi-head self-attention over pixels (Flax NNX), thin over the score functions and kernels.

`MHSA(X)_q = sum_h head_h(X)_q W_out^(h) + b_out`, `head_h(X)_q = sum_k softmax_k(score_h(q, .))_k X_k W_val^(h)`.
Which score: an `Encoding` of encodings.py, alone or with a content term added.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from attn_cnn_jax.models.attention import kernels
from attn_cnn_jax.models.attention.scores import at_least_float32
from attn_cnn_jax.models.encodings.base import Encoding, Projections
from attn_cnn_jax.models.encodings.content import Content
from attn_cnn_jax.models.layers import dropout, linear


class SelfAttention(nnx.Module):
    """One layer of multi-head self-attention on pictures `(b, H, W, D)`.

    Attributes:
      position: the encoding.
      content: `q . k / sqrt(D_h)` added to its scores, or None.
      gate: `(h,)`, or None where scores are added. Its sigmoid `g` weighs two softmaxes instead, as in ConViT:
        `g softmax(position) + (1 - g) softmax(content)`; starts at 1, so `g = 0.73`.
      dropout_on: which attention dropout drops: "probabilities" one by one, as the paper does, or "factors": entries
        of the row and of the column softmax, each with the same rate, which keeps attention a product.
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
        dropout_on: str = "probabilities",
    ):
        self.position = position
        self.content = Content(num_heads, hidden_size, head_size, dtype=dtype, rngs=rngs) if content else None
        self.gate = nnx.Param(jnp.ones(num_heads, at_least_float32(dtype))) if gated else None
        self.num_heads = num_heads
        self.dropout_rate, self.dropout_on = dropout_rate, dropout_on
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

    def maps(self) -> kernels.Maps:
        """Value and output maps of every head, in the type of activations."""
        return jax.tree.map(lambda kernel: kernel.astype(self.output.dtype), self._parameters_of_maps())

    def merged_maps(self) -> jax.Array:
        """`W^(h) = W_val^(h) W_out^(h)`, as Lemma 1 has it: `(h, D, o)`, in the type of parameters."""
        value, output = self._parameters_of_maps()
        return output if value is None else jnp.einsum("hDd,hdo->hDo", value, output)

    def _parameters_of_maps(self) -> kernels.Maps:
        output = self.output.kernel[...].reshape(self.num_heads, -1, self.output.out_features)
        if self.value is None:
            return kernels.Maps(None, output)
        value = self.value.kernel[...]
        return kernels.Maps(value.reshape(value.shape[0], self.num_heads, -1).transpose(1, 0, 2), output)

    @property
    def bias(self) -> jax.Array:
        """`b_out` as it is added to activations: `(1, 1, 1, o)`."""
        return self.output.bias[...].astype(self.output.dtype)[None, None, None]

    def kernel_for(self, shape: tuple[int, ...], *, training: bool) -> str:
        """Name of the kernel that runs on pictures of this shape `(b, H, W, D)`; see `kernels.choose`."""
        drops = training and self.dropout_rate > 0 and self.dropout_on == "probabilities"
        return kernels.choose(
            self.kernel,
            factorises=self.factorises and not drops,
            pictures_share=not self.depends_on_content,
            shape=shape,
            num_heads=self.num_heads,
        )

    def project(self, x: jax.Array) -> list[tuple[Encoding, Projections]]:
        """Encodings that read the picture, each with the queries and keys of `x` `(b, H, W, D)`."""
        readers = [self.position] if self.position.depends_on_content else []
        readers += [] if self.content is None else [self.content]
        return [(reader, reader.project(x)) for reader in readers]

    def position_terms(self, height: int, width: int, query_rows: jax.Array | None = None):
        """Score terms that depend on the two pixels alone: a dict of `(h, i, j, k, l)`."""
        rows = jnp.arange(height) if query_rows is None else query_rows
        return self.position.position_terms(height, width, rows)

    def content_terms(self, x: jax.Array):
        """Score terms that depend on the picture `(b, H, W, D)`: a dict; they broadcast to `(b, h, i, j, k, l)`."""
        return terms_of(self.project(x), jnp.arange(x.shape[1]))

    def probabilities(self, x: jax.Array) -> jax.Array:
        """Attention of every head.

        Args:
          x: `(b, H, W, D)`; of a position-only layer only its shape is read.

        Returns:
          `(h, q, p)` where it does not depend on content, else `(b, h, q, p)`, float32 or wider.
        """
        size = x.shape[1:3]
        if self.factorises:
            return kernels.outer(*map(kernels.softmax, self.position.axis_scores(*size)))
        projections = self.project(x) if self.depends_on_content else []
        return self.probabilities_of_rows(projections, size, jnp.arange(size[0]))

    def probabilities_of_rows(
        self, projections: list[tuple[Encoding, Projections]], size: tuple[int, int], query_rows: jax.Array
    ) -> jax.Array:
        """Attention of the pixels in `query_rows` `(i,)`: `(h, i W, H W)` or `(b, h, i W, H W)`."""

        def softmax(terms):
            scores = functools.reduce(jnp.add, terms)
            scores = jnp.broadcast_to(scores, (*scores.shape[:2], len(query_rows), size[1], *size))
            return kernels.softmax(scores.reshape(*scores.shape[:2], -1, size[0] * size[1]))

        position = [term[None] for term in self.position_terms(*size, query_rows).values()]
        content = list(terms_of(projections, query_rows).values())
        if not self.depends_on_content:
            return softmax(position)[0]
        if self.gate is None:
            return softmax(position + content)
        gate = jax.nn.sigmoid(self.gate[...])[None, :, None, None]
        return gate * softmax(position) + (1 - gate) * softmax(content)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """`(b, H, W, D) -> (b, H, W, D)`; `key` is given in training and draws the dropout mask.

        Where attention does not depend on the picture, one mask serves the whole batch.
        """
        x = x.astype(self.output.dtype)
        batch, height, width, _ = x.shape
        kernel = self.kernel_for(x.shape, training=key is not None)
        if self.factorises:
            axes = [kernels.softmax(scores) for scores in self.position.axis_scores(height, width)]
            if key is not None and self.dropout_on == "factors":
                axes = [
                    dropout(k, axis, self.dropout_rate) for k, axis in zip(jax.random.split(key), axes, strict=True)
                ]
                key = None
            of_rows = lambda rows: kernels.outer(axes[0][:, rows], axes[1])  # noqa: E731
        else:
            projections = self.project(x)
            of_rows = functools.partial(self.probabilities_of_rows, projections, (height, width))

        if kernel == "factorised":
            attended = kernels.factorised(*axes, x, self.maps())
        elif kernel == "dense":
            probabilities = dropout(key, of_rows(jnp.arange(height)), self.dropout_rate)
            attended = kernels.dense(probabilities, x.reshape(batch, height * width, -1), self.maps())
        else:

            def block(number, rows):
                block_key = None if key is None else jax.random.fold_in(key, number)
                return dropout(block_key, of_rows(rows), self.dropout_rate)

            attended = kernels.blocked(block, x, self.maps())
        return attended.reshape(batch, height, width, -1) + self.bias


def terms_of(projections: list[tuple[Encoding, Projections]], query_rows: jax.Array) -> dict[str, jax.Array]:
    """Score terms that depend on the picture, of all encodings that read it; rows of queries follow each other."""
    terms = {}
    for encoding, projected in projections:
        terms |= encoding.content_terms(projected, query_rows)
    return terms
