"""Multi-head self-attention over pixels (Flax NNX), thin over scores and implementations.

`MHSA(X)_q = sum_h head_h(X)_q W_out^(h) + b_out`, `head_h(X)_q = sum_k softmax_k(score_h(q, .))_k X_k W_val^(h)`.
Which score: an `Encoding`, alone or with a content term added.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from attn_cnn_jax.arrays import AnyArray, Grid
from attn_cnn_jax.models.attention import forms
from attn_cnn_jax.models.attention.blocked import blocked
from attn_cnn_jax.models.attention.chunks import dense_in_chunks
from attn_cnn_jax.models.attention.dense import Maps, dense, softmax
from attn_cnn_jax.models.attention.encoding import Encoding, FactorisingEncoding, Projections
from attn_cnn_jax.models.attention.factorised import outer
from attn_cnn_jax.models.attention.implementations import choose
from attn_cnn_jax.models.attention.merged_content import MergedMaps
from attn_cnn_jax.models.attention.scores import add_shared, add_shared_on_cpus
from attn_cnn_jax.models.layers import at_least_float32, dropout, dropout_mask, linear, masked


class SelfAttention(nnx.Module):
    """One layer of multi-head self-attention on pictures `(b, H, W, d)`.

    Attributes:
      position: the encoding.
      content: the encoding whose scores are added, `q . k / sqrt(D_h)`, or None.
      gate: `(h,)`, or None where scores are added. Its sigmoid `g` weighs two softmaxes instead, as in ConViT:
        `g softmax(position) + (1 - g) softmax(content)`; starts at 1, so `g = 0.73`.
      dropout_on: which attention dropout drops: "probabilities" one by one, as the paper does, or "factors": entries
        of the row and of the column softmax, each with the same rate, which keeps attention a product.
      value: per-head value maps `W_val`, only where the head size is below hidden and output size; else None
        and `output` holds the merged maps `W^(h) = W_val^(h) W_out^(h)`.
      platform: what the layer is compiled for, see `models.platform.for_platform`; None for JAX's default backend.
      pixels_first: whether the layer takes and returns `(H, W, b, channels)`, as networks on GPUs and TPUs do.
      output: linear map from the concatenated head averages, head by head, to the output channels.
    """

    # As for an encoding's `head_axis`.
    head_axis = {"gate": 0, "value.kernel": 1, "output.kernel": 0}
    values = ("value.kernel", "output.kernel")
    pixels_first = False
    not_decayed = ("gate",)  # decay would pull gates half open

    def __init__(
        self,
        position: Encoding,
        *,
        num_heads: int,
        hidden_size: int,
        head_size: int | None = None,
        output_size: int | None = None,
        content: Encoding | None = None,
        gated: bool = False,
        dropout_rate: float = 0.0,
        dropout_on: str = "probabilities",
        implementation: str = "auto",
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """Creates the value and output maps.

        Args:
          position: the encoding, for `num_heads` heads.
          num_heads: `N_h`.
          hidden_size: channels of the input.
          head_size: `D_h`; None for the hidden size, as in the paper.
          output_size: channels of the output; None for the hidden size.
          content: an encoding whose content scores are added, such as `Content`.
          gated: whether a gate per head weighs two softmaxes; needs `content`.
          dropout_rate: of attention, from 0 to `1 - 2^-16`; applied where a key is given.
          dropout_on: "probabilities" or "factors".
          implementation: one of `implementations.IMPLEMENTATIONS`.
          dtype: of activations; parameters, scores and softmax are float32 or wider.
          rngs: source of the initial parameters.
        """
        output_size = hidden_size if output_size is None else output_size
        head_size = hidden_size if head_size is None else head_size
        self.position, self.content = position, content
        self.gate = nnx.Param(jnp.ones(num_heads, at_least_float32(dtype))) if gated else None
        self.num_heads = num_heads
        self.dropout_rate, self.dropout_on = dropout_rate, dropout_on
        self.implementation = implementation
        self.platform: str | None = None
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

    def maps(self) -> Maps:
        """Value and output maps of every head, in the type of activations."""
        return jax.tree.map(lambda kernel: kernel.astype(self.output.dtype), self._parameters_of_maps())

    def merged_maps(self) -> Float[Array, "h d o"]:
        """`W^(h) = W_val^(h) W_out^(h)`, as Lemma 1 has it, in the type of parameters."""
        value, output = self._parameters_of_maps()
        return output if value is None else jnp.einsum("hdc,hco->hdo", value, output, precision="highest")

    def _parameters_of_maps(self) -> Maps:
        output = self.output.kernel[...].reshape(self.num_heads, -1, self.output.out_features)
        if self.value is None:
            return Maps(None, output)
        value = self.value.kernel[...]
        return Maps(value.reshape(value.shape[0], self.num_heads, -1).transpose(1, 0, 2), output)

    @property
    def target(self) -> str:
        """The platform that the layer is compiled for: "cpu", "gpu" or "tpu"."""
        return self.platform or jax.default_backend()

    @property
    def bias(self) -> Float[AnyArray, "1 1 1 o"]:
        """`b_out` as it is added to activations."""
        assert self.output.bias is not None
        return self.output.bias[...].astype(self.output.dtype)[None, None, None]

    def implementation_for(self, shape: tuple[Any, ...], *, training: bool) -> str:
        """Name of the implementation that runs on pictures of this shape `(b, H, W, d)`; see `choose`."""
        drops = training and self.dropout_rate > 0 and self.dropout_on == "probabilities"
        return choose(
            self.implementation,
            factorises=self.factorises and not drops,
            of_batch=self.depends_on_content and (drops or self.target != "cpu"),
            shape=shape,
            num_heads=self.num_heads,
            platform=self.target,
        )

    def readers(self) -> list[Encoding]:
        """Encodings that read the picture: the layer's own, the content that is added, both or none."""
        readers = [self.position] if self.position.depends_on_content else []
        return readers + ([] if self.content is None else [self.content])

    def project(self, x: Float[Array, "b H W d"]) -> list[tuple[Encoding, Projections]]:
        """Encodings that read the picture, each with its queries and keys of `x`."""
        return [(reader, reader.project(x)) for reader in self.readers()]

    def merged_content(self) -> MergedMaps | None:
        """Merged maps of the content scores, where there are such of all of them and values are merged; else None."""
        readers = self.readers()
        return readers[0].merged_content() if len(readers) == 1 and self.gate is None and self.value is None else None

    def position_terms(
        self, height: int, width: int, query_rows: Int[Array, " i"] | None = None
    ) -> dict[str, Float[Array, "h i j k l"]]:
        """Score terms that depend on the two pixels alone, by name; of all query rows by default."""
        rows = jnp.arange(height) if query_rows is None else query_rows
        return self.position.position_terms(height, width, rows)

    def content_terms(self, x: Float[Array, "b H W d"]) -> dict[str, Float[Array, "..."]]:
        """Score terms that depend on the picture, by name; they broadcast to `(b, h, i, j, k, l)`."""
        return terms_of(self.project(x), jnp.arange(x.shape[1]))

    def separate_terms(self, x: Float[Array, "b H W d"]) -> dict[str, Float[Array, "..."]]:
        """`content_terms`, further apart where the paper's equation has more of them (eq. 7 of absolute positions)."""
        terms = {}
        for reader in self.readers():
            terms |= reader.separate_terms(x, jnp.arange(x.shape[1]))
        return terms

    def probabilities(self, x: Float[Array, "b H W d"]) -> Float[Array, "h i j k l"] | Float[Array, "b h i j k l"]:
        """Returns attention of every head without dropout, float32 or wider.

        Args:
          x: pictures; of a position-only layer only the shape is read.

        Returns:
          Query pixel, then key pixel; with an axis of pictures where attention depends on content.
        """
        size = x.shape[1], x.shape[2]
        if not self.depends_on_content:
            return self.position_probabilities(size)
        flat = self.probabilities_of_rows(self.project(x), size, jnp.arange(size[0]))
        return flat.reshape(*flat.shape[:-2], *size, *size)

    def position_probabilities(self, size: Grid) -> Float[Array, "h i j k l"]:
        """Returns attention of a layer that does not depend on content, over `size` rows and columns of pixels."""
        if self.factorises:
            flat = outer(*self.factors(size))
        else:
            flat = self.probabilities_of_rows([], size, jnp.arange(size[0]))
        return flat.reshape(*flat.shape[:-2], *size, *size)

    def probabilities_of_rows(
        self, projections: Sequence[tuple[Encoding, Projections]], size: Grid, query_rows: Int[Array, " i"]
    ) -> Float[Array, "h q p"] | Float[Array, "b h q p"]:
        """Returns attention of the pixels in `query_rows`, `q = i W`, `p = H W`."""

        def sum_of(terms):
            scores = functools.reduce(jnp.add, terms.values())
            heads = scores.shape[:-4]
            scores = jnp.broadcast_to(scores, (*heads, len(query_rows), size[1], *size))
            return scores.reshape(*heads, -1, size[0] * size[1])

        position = self.position_terms(*size, query_rows)
        if not self.depends_on_content:
            return softmax(sum_of(position))
        content = sum_of(terms_of(projections, query_rows))
        add = add_shared_on_cpus if self.target == "cpu" else add_shared
        if self.gate is not None:
            gate = jax.nn.sigmoid(self.gate[...])[:, None, None]
            return add((1 - gate)[None] * softmax(content), gate * softmax(sum_of(position)))
        return softmax(add(content, sum_of(position)) if position else content)

    def __call__(
        self, x: Float[Array, "b H W d"], key: PRNGKeyArray | None = None, counted: int | None = None
    ) -> Float[Array, "b H W o"]:
        """Attends; `key` is given in training and draws the dropout mask.

        Where attention does not depend on the picture, one mask serves the whole batch.

        Args:
          x: pictures.
          key: None in evaluation.
          counted: how many pictures, the first ones, count; None for all. The others only fill up the batch, and do
            not change which implementation runs: dropout masks depend on it.
        """
        if self.pixels_first:
            return jnp.moveaxis(self.attend(jnp.moveaxis(x, 2, 0), key, counted), 0, 2) + self.bias
        return self.attend(x, key, counted) + self.bias

    def attend(
        self, x: Float[Array, "b H W d"], key: PRNGKeyArray | None = None, counted: int | None = None
    ) -> Float[Array, "b H W o"]:
        """`__call__` without bias, pictures first."""
        x = x.astype(self.output.dtype)
        batch, height, width, channels = x.shape
        of_count = (batch if counted is None else counted, height, width, channels)
        implementation = self.implementation_for(of_count, training=key is not None)
        if implementation == "dense" and self.depends_on_content:
            return self.attend_content(x, key)
        if self.factorises:
            of_factors, key = (key, None) if self.dropout_on == "factors" else (None, key)
            rows, columns = self.factors((height, width), of_factors)
            if implementation == "factorised":
                return forms.by_factors(rows, columns, x, self.maps(), self.target)

            def of_rows(query_rows):
                return outer(rows[:, query_rows], columns)

        else:
            of_rows = functools.partial(self.probabilities_of_rows, self.project(x), (height, width))

        if implementation == "dense":
            probabilities = dropout(key, of_rows(jnp.arange(height)), self.dropout_rate, self.target)
            return forms.shared(probabilities, x, self.maps(), self.target)

        def block(number, query_rows):
            block_key = None if key is None else jax.random.fold_in(key, number)
            return dropout(block_key, of_rows(query_rows), self.dropout_rate, self.target)

        return blocked(block, x, self.maps())

    def factors(
        self, size: Grid, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "h i k"], Float[Array, "h j l"]]:
        """Row and column softmax of attention that factorises, after dropout where a key is given."""
        assert isinstance(self.position, FactorisingEncoding)
        rows, columns = map(softmax, self.position.axis_scores(*size))
        if key is None:
            return rows, columns
        of_rows, of_columns = jax.random.split(key)
        dropped_rows = dropout(of_rows, rows, self.dropout_rate, self.target)
        return dropped_rows, dropout(of_columns, columns, self.dropout_rate, self.target)

    def attend_content(self, x: Float[Array, "b H W d"], key: PRNGKeyArray | None) -> Float[Array, "b H W o"]:
        """`attend` of dense attention that depends on the picture."""
        batch, height, width, _ = x.shape
        pixels = height * width
        merged = None if self.target == "cpu" else self.merged_content()
        if merged is not None:
            positions = None
            if terms := list(self.position_terms(height, width).values()):
                positions = functools.reduce(jnp.add, terms).reshape(self.num_heads, pixels, pixels)
            output = self.maps().output
            return forms.merged_content(x, merged, positions, output, key, self.dropout_rate, self.target)
        keep = dropout_mask(key, (batch, self.num_heads, pixels, pixels), self.dropout_rate, self.target)
        if self.target == "cpu":
            return dense_in_chunks(self.probabilities, x, self.maps(), *keep)
        probabilities = self.probabilities_of_rows(self.project(x), (height, width), jnp.arange(height))
        attended = dense(masked(probabilities, *keep), x.reshape(batch, pixels, -1), self.maps())
        return attended.reshape(batch, height, width, -1)


def terms_of(
    projections: Sequence[tuple[Encoding, Projections]], query_rows: Int[Array, " i"]
) -> dict[str, Float[Array, "..."]]:
    """Score terms that depend on the picture, of all encodings that read it; query rows follow each other."""
    terms = {}
    for encoding, projected in projections:
        terms |= encoding.content_terms(projected, query_rows)
    return terms
