"""Multi-head self-attention over pixels (Flax NNX), thin over scores and the sum over heads.

The score is that of an `Encoding`, alone or with a content term added.
"""

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from attn_cnn_jax.arrays import Activations, AnyArray, Attention, Grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import layers
from attn_cnn_jax.models.attention import accelerator, cpu, parts
from attn_cnn_jax.models.attention.encoding import Encoding, FactorisingEncoding, Rows, check_encodings
from attn_cnn_jax.models.attention.parts import in_parts
from attn_cnn_jax.models.attention.scores import Maps, MergedMaps, add_shared, outer, softmax
from attn_cnn_jax.models.layers import at_least_float32, dropout, dropout_mask, linear, masked
from attn_cnn_jax.options import IMPLEMENTATIONS

Model = TypeVar("Model", bound=nnx.Module)
Terms = dict[str, Float[Array, "..."]]
Factors = tuple[Float[Array, "h i k"], Float[Array, "h j l"]]
Attended = Float[Array, "b H W o"]
Flat = Float[Array, "h q p"] | Float[Array, "b h q p"]  # probabilities


class SelfAttention(layers.OnPlatform):
    """One layer of multi-head self-attention on images `(b, H, W, d)`.

    Attributes:
      position: the encoding.
      content: the encoding whose scores are added, `q . k / sqrt(D_h)`, or None.
      gate: `(h,)`, or None where scores are added. Its sigmoid `g` weighs two softmaxes instead, as in ConViT:
        `g softmax(position) + (1 - g) softmax(content)`; starts at 1, so `g = 0.73`.
      value: per-head value maps `W_val`, only where the head size is below hidden and output size; else None
        and `output` holds the merged maps `W^(h) = W_val^(h) W_out^(h)`.
      output: linear map from the concatenated head averages, head by head, to the output channels.
      devices: the number of devices that share the images.
    """

    # As for an encoding's `head_axis`.
    head_axis = {"gate": 0, "value.kernel": 1, "output.kernel": 0}
    values = ("value.kernel", "output.kernel")
    devices: int = 1
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
          num_heads, hidden_size: `N_h`, channels of the input.
          head_size, output_size: `D_h`, channels of the output; None for the hidden size.
          content: an encoding whose content scores are added, such as `Content`.
          gated: whether a gate per head weighs two softmaxes; needs `content`.
          dropout_rate: of attention, from 0 to `1 - 2^-16`; applied where a key is given.
          dropout_on: "probabilities" one by one, as the paper does, or "factors": entries of the row and of the column
            softmax, each with the same rate, which keeps attention a product.
          implementation: one of `options.IMPLEMENTATIONS`.
          dtype: of activations; parameters, scores and softmax are float32 or wider.
        """
        output_size, head_size = (hidden_size if size is None else size for size in (output_size, head_size))
        layers.check_sizes(num_heads=num_heads, hidden_size=hidden_size, head_size=head_size, output_size=output_size)
        layers.check_choice("dropout_on", dropout_on, ("probabilities", "factors"))
        layers.check_choice("implementation", implementation, IMPLEMENTATIONS)
        layers.check_rate("dropout_rate", dropout_rate)
        check_encodings(position, content, num_heads, hidden_size)
        if gated and content is None:
            raise UserError("gated=True: a gate weighs position and content; give content, such as Content(...)")
        self.position, self.content = position, content
        self.gate = nnx.Param(jnp.ones(num_heads, at_least_float32(dtype))) if gated else None
        self.num_heads = num_heads
        self.dropout_rate, self.dropout_on = dropout_rate, dropout_on
        self.implementation = implementation
        for name, value in (("dropout_on", "factors"), ("implementation", "factorised")):
            if getattr(self, name) == value and not self.factorises:
                raise UserError(f"{name}={value!r}: attention is a product only where rows and columns add, no content")
        merged = head_size >= min(hidden_size, output_size)
        common = {"dtype": dtype, "rngs": rngs}
        self.value = None if merged else linear(hidden_size, num_heads * head_size, use_bias=False, **common)
        self.output = linear(num_heads * (hidden_size if merged else head_size), output_size, **common)

    @property
    def depends_on_content(self) -> bool:
        """Whether the attention differs from image to image."""
        return self.content is not None or self.position.depends_on_content

    @property
    def factorises(self) -> bool:
        """Whether the attention is a product of a row and a column softmax."""
        return isinstance(self.position, FactorisingEncoding) and self.content is None

    def maps(self, dtype: DTypeLike | None = None) -> Maps:
        """Value and output maps of every head, in the type of activations unless another is given."""
        dtype = self.output.dtype if dtype is None else dtype
        output = self.output.kernel[...].reshape(self.num_heads, -1, self.output.out_features).astype(dtype)
        if self.value is None:
            return Maps(None, output)
        value = self.value.kernel[...].reshape(self.value.in_features, self.num_heads, -1)
        return Maps(value.transpose(1, 0, 2).astype(dtype), output)

    def merged_maps(self) -> Float[Array, "h d o"]:
        """`W^(h) = W_val^(h) W_out^(h)`, as Lemma 1 has it, in the type of parameters."""
        value, output = self.maps(self.output.kernel.dtype)
        return output if value is None else jnp.einsum("hdc,hco->hdo", value, output, precision="highest")

    @property
    def bias(self) -> Float[AnyArray, "1 1 1 o"]:
        """`b_out` as it is added to activations."""
        assert self.output.bias is not None
        return self.output.bias[...].astype(self.output.dtype)[None, None, None]

    @property
    def readers(self) -> list[Encoding]:
        """Encodings that read the image: the layer's own, the content that is added, both or none."""
        return [e for e in (self.position, self.content) if e is not None and e.depends_on_content]

    def merged_content(self) -> MergedMaps | None:
        """Merged maps of the content scores, where there are such of all of them and values are merged; else None."""
        readers = self.readers
        if len(readers) != 1 or self.gate is not None or self.value is not None:
            return None
        return readers[0].merged_content()

    def position_terms(self, height: int, width: int, query_rows: Rows | None = None) -> Terms:
        """Score terms that depend on the two pixels alone, `(h, i, j, k, l)` by name; of all query rows by default."""
        rows = jnp.arange(height) if query_rows is None else query_rows
        return self.position.position_terms(height, width, rows)

    def content_terms(self, x: Activations) -> Terms:
        """Score terms that depend on the image, by name; they broadcast to `(b, h, i, j, k, l)`."""
        return self._terms_of(self._project(x), jnp.arange(x.shape[1]))

    def _project(self, x: Activations) -> list[Any]:
        """What each of `readers` reads of `x`, such as queries and keys."""
        return [reader.project(x) for reader in self.readers]

    def _terms_of(self, projections: list[Any], query_rows: Rows) -> Terms:
        """`content_terms` of some query rows that follow each other, from `_project`."""
        terms = {}
        for reader, projected in zip(self.readers, projections, strict=True):
            terms |= reader.content_terms(projections=projected, query_rows=query_rows)  # nnx.tabulate wants names
        return terms

    def factors(self, size: Grid, key: PRNGKeyArray | None = None) -> Factors:
        """Row and column softmax of attention that factorises, after dropout where a key is given."""
        assert isinstance(self.position, FactorisingEncoding)
        rows, columns = map(softmax, self.position.axis_scores(*size))
        if key is None:
            return rows, columns
        of_rows, of_columns = jax.random.split(key)
        return dropout(of_rows, rows, self.dropout_rate), dropout(of_columns, columns, self.dropout_rate)

    def _softmax_of_scores(self, projections: list[Any], size: Grid, query_rows: Rows) -> Flat:
        """`softmax_k(score_h(q, .))` of the pixels in `query_rows`, flattened: `q = i W`, `p = H W`."""

        def sum_of(terms):
            scores = functools.reduce(jnp.add, terms.values())
            heads = scores.shape[:-4]
            scores = jnp.broadcast_to(scores, (*heads, len(query_rows), size[1], *size))
            return scores.reshape(*heads, -1, size[0] * size[1])

        position = self.position_terms(*size, query_rows)
        if not self.depends_on_content:
            return softmax(sum_of(position))
        content = sum_of(self._terms_of(projections, query_rows))
        if self.gate is not None:
            gate = jax.nn.sigmoid(self.gate[...])[:, None, None]
            return add_shared((1 - gate)[None] * softmax(content), gate * softmax(sum_of(position)))
        return softmax(add_shared(content, sum_of(position)) if position else content)

    def probabilities(self, x: Activations) -> Attention:
        """Attention of every head without dropout, float32 or wider: query pixel, then key pixel.

        With an axis of images where it depends on content; else only the shape of `x` is read.
        """
        size = x.shape[1], x.shape[2]
        if self.factorises:
            flat = outer(*self.factors(size))
        else:
            flat = self._softmax_of_scores(self._project(x), size, jnp.arange(size[0]))
        return flat.reshape(*flat.shape[:-2], *size, *size)

    def __call__(self, x: Activations, key: PRNGKeyArray | None = None) -> Attended:
        """Attends; `key` is given in training and samples the dropout mask, one per batch without content."""
        return self._attend(x, key)[0]

    def with_intermediates(self, x: Activations, key: PRNGKeyArray | None = None) -> tuple[Attended, dict[str, Any]]:
        """The output, and what leads there: `attention`, as `probabilities`; `position_scores`, `content_scores`."""
        attended, attention = self._attend(x, key)
        return attended, {
            "attention": self.probabilities(x) if attention is None else attention,
            "position_scores": self.position_terms(x.shape[1], x.shape[2]),
            "content_scores": self.content_terms(x),
        }

    def _attend(self, x: Activations, key: PRNGKeyArray | None) -> tuple[Attended, Attention | None]:
        """The output, and the attention before dropout where the computation has all of it at once."""
        x = x.astype(self.output.dtype)
        backend = cpu if self.target == "cpu" else accelerator
        dense = functools.partial(backend.dense, devices=self.devices)
        (_, height, width, _), size, attention = x.shape, (x.shape[1], x.shape[2]), None
        implementation = parts.implementation_for(self, x.shape, training=key is not None)
        if implementation == "dense" and self.depends_on_content:
            return self._attend_by_content(x, key) + self.bias, None
        of_factors, key = (key, None) if self.dropout_on == "factors" else (None, key)
        factors = self.factors(size, of_factors) if self.factorises else None
        projections = self._project(x)

        def probabilities(query_rows):
            if factors is None:
                return self._softmax_of_scores(projections, size, query_rows)
            return outer(factors[0][:, query_rows], factors[1])

        if implementation == "factorised":
            assert factors is not None
            attended = backend.factorised(*factors, x, self.maps())
        elif implementation == "blocked":

            @jax.checkpoint
            def of_block(x, number, query_rows):
                block_key = None if key is None else jax.random.fold_in(key, number)
                dropped = dropout(block_key, probabilities(query_rows), self.dropout_rate)
                return dense(dropped, x, self.maps())

            attended = in_parts(of_block, x, height=height, rows=parts.rows_per_block(height, width))
        else:
            flat = probabilities(jnp.arange(height))
            attention = flat.reshape(-1, *size, *size) if of_factors is None else None
            attended = dense(dropout(key, flat, self.dropout_rate), x, self.maps())
        return attended + self.bias, attention

    def _attend_by_content(self, x: Activations, key: PRNGKeyArray | None) -> Attended:
        """The sum over heads of dense attention that depends on the image, without bias."""
        batch, height, width, _ = x.shape
        pixels, on_cpu = height * width, self.target == "cpu"
        if not on_cpu and (merged := self.merged_content()) is not None:
            terms = self.position_terms(height, width).values()
            positions = functools.reduce(jnp.add, terms).reshape(-1, pixels, pixels) if terms else None
            return accelerator.content(x, merged, positions, self.maps().output, key, self.dropout_rate)
        keep, factor = dropout_mask(key, (batch, self.num_heads, pixels, pixels), self.dropout_rate)

        @jax.checkpoint
        def of_images(images_and_keep, _, query_rows):
            images, keep = images_and_keep
            probabilities = self._softmax_of_scores(self._project(images), (height, width), query_rows)
            return cpu.dense(masked(probabilities, keep, factor), images, self.maps())

        most = parts.PART_BYTES // (4 * self.num_heads * pixels**2) if on_cpu else None
        return in_parts(of_images, (x, keep), images=most, height=height)


def for_platform(model: Model, platform: str, devices: int = 1) -> Model:
    """A copy of a network, tracers too, that is computed as is best on so many "cpu", "gpu" or "tpu"."""
    model = nnx.clone(model)
    for _, module in nnx.iter_modules(model):
        if isinstance(module, SelfAttention):
            module.devices = devices
        if isinstance(module, layers.OnPlatform):
            module.platform = platform
    return model
