"""The paper's classifier: pixels grouped two by two, post-norm blocks of self-attention, mean, linear map."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from attn_cnn_jax.arrays import Activations, AnyArray
from attn_cnn_jax.models.attention.encoding import Sizes
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings import Content, encoding_class
from attn_cnn_jax.models.grid import identity_kernel, start_on_grid
from attn_cnn_jax.models.layers import Linear, at_least_float32, dropout, layer_norm, linear

LAYER_NORM_EPSILON = 1e-12  # inside the square root, as BERT has it

Intermediates = dict[str, Any]


def space_to_depth(images: Float[Array, "b H W C"], size: int) -> Float[Array, "b i j f"]:
    """Returns pictures in which squares of `size` pixels are one pixel, `f = size^2 C` in the order `(dy, dx, C)`."""
    b, height, width, channels = images.shape
    x = images.reshape(b, height // size, size, width // size, size, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, height // size, width // size, size * size * channels)


class Block(nnx.Module):
    """BERT's post-norm block: `x = LN(x + drop(dense(attention(x))))`, `x = LN(x + drop(W2 gelu(W1 x)))`.

    For inference `dense` may be None: see merging.py.

    Attributes:
      platform: what the block is compiled for, see models/platform.py.
      rematerialised: whether gradients compute dropout and layer norm again.
    """

    platform: str | None = None
    rematerialised = True

    def __init__(
        self,
        attention: SelfAttention,
        *,
        hidden_size: int,
        intermediate_size: int,
        dropout_rate: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        def layer_norm():
            return nnx.LayerNorm(
                hidden_size,
                epsilon=LAYER_NORM_EPSILON,
                use_fast_variance=False,
                dtype=dtype,
                param_dtype=at_least_float32(dtype),
                rngs=rngs,
            )

        self.attention = attention
        self.dense: Linear | None = linear(hidden_size, hidden_size, dtype=dtype, rngs=rngs)
        self.attention_norm = layer_norm()
        self.intermediate = linear(hidden_size, intermediate_size, dtype=dtype, rngs=rngs)
        self.output = linear(intermediate_size, hidden_size, dtype=dtype, rngs=rngs)
        self.output_norm = layer_norm()
        self.dropout_rate = dropout_rate

    def __call__(self, x: Activations, key: PRNGKeyArray | None = None, counted: int | None = None) -> Activations:
        """Returns the output of the block; `key` is given in training, `counted` where not all pictures count."""
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        drawn = None  # random numbers do not depend on how a batch is filled up
        if counted is not None and self.attention.pixels_first:
            drawn = (*x.shape[:2], counted, x.shape[3])

        # What lies between matrix products is rematerialised for gradients: storing it costs 50% more memory and saves
        # no time on CPUs.
        def add_and_norm(norm, key, x, change):
            def added(x, change):
                return x + dropout(key, change, self.dropout_rate, self.platform, drawn)

            if not self.rematerialised:
                return layer_norm(added(x, change), norm.scale[...], norm.bias[...], norm.epsilon)
            return jax.checkpoint(lambda x, change: norm(added(x, change)))(x, change)

        gelu = jax.checkpoint(functools.partial(jax.nn.gelu, approximate=False))

        # What stands in for attention, in evaluation, takes no more.
        attended = self.attention(x, keys[0]) if counted is None else self.attention(x, keys[0], counted)
        if self.dense is not None:
            attended = self.dense(attended)
        x = add_and_norm(self.attention_norm, keys[1], x, attended)
        transformed = self.output(gelu(self.intermediate(x)))
        return add_and_norm(self.output_norm, keys[2], x, transformed)


class AttentionClassifier(nnx.Module):
    """The network of the paper's experiments; its values are those of `config.model`, see config/base.py.

    Attributes:
      pixels_first: whether activations are `(H, W, b, d)` between the layers; see models/platform.py.
    """

    pixels_first = False

    def __init__(
        self,
        *,
        image_shape: Sequence[int],
        num_classes: int,
        encoding: str,
        encoding_options: Mapping[str, Any],
        content: bool,
        gate: bool,
        num_layers: int,
        num_heads: int | tuple[int, ...],
        hidden_size: int,
        head_size: int,
        intermediate_size: int,
        downsample: int,
        dropout: float,
        attention_dropout: float,
        attention_dropout_on: str,
        implementation: str,
        init: str,
        locality: float,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        """Creates the network.

        Args:
          image_shape: height, width and channels of the pictures; learned tables reach across this size.
          num_classes: number of classes.
          encoding: name of a registered encoding.
          encoding_options: values of the encoding's own options.
          content: whether `q . k / sqrt(D_h)` is added to the position scores.
          gate: whether a gate per head weighs the two softmaxes instead.
          num_layers: number of blocks.
          num_heads: `N_h`, one number or (after pruning) one per layer.
          hidden_size: `D`.
          head_size: `D_h`.
          intermediate_size: channels between the two maps of a block's feed-forward part.
          downsample: side of the squares of pixels that become one.
          dropout: rate after `dense` and after the feed-forward part.
          attention_dropout: rate of dropout on attention.
          attention_dropout_on: see `SelfAttention.dropout_on`.
          implementation: see `SelfAttention`.
          init: "paper"; "grid": centres on a square grid of shifts; "identity": there, and every head moves its share
            of the channels.
          locality: `alpha` of every head on the grid, in one over square pixels.
          dtype: of activations.
          rngs: source of the initial parameters.
        """
        common = {"dtype": dtype, "rngs": rngs}
        height, width, channels = image_shape
        grid = height // downsample, width // downsample
        kind = encoding_class(encoding)
        counts = (num_heads,) * num_layers if isinstance(num_heads, int) else tuple(num_heads)

        self.downsample = downsample
        self.embedding = linear(channels * downsample**2, hidden_size, **common)
        blocks: list[Block] = []
        for heads in counts:
            sizes = Sizes(heads, hidden_size, head_size, grid, jnp.dtype(dtype))
            layer = SelfAttention(
                kind.create(sizes, rngs=rngs, **encoding_options),
                content=Content(*sizes[:3], **common) if content else None,
                num_heads=heads,
                hidden_size=hidden_size,
                head_size=head_size,
                gated=gate,
                dropout_rate=attention_dropout,
                dropout_on=attention_dropout_on,
                implementation=implementation,
                **common,
            )
            if init != "paper":
                kernel = identity_kernel(heads, hidden_size) if init == "identity" else None
                start_on_grid(layer, locality, kernel)
            block = Block(
                layer,
                hidden_size=hidden_size,
                intermediate_size=intermediate_size,
                dropout_rate=dropout,
                **common,
            )
            blocks.append(block)
        self.blocks = nnx.List(blocks)
        self.classifier = linear(hidden_size, num_classes, **common)

    def __call__(
        self,
        images: Float[AnyArray, "b H W C"],
        *,
        key: PRNGKeyArray | None = None,
        counts: Bool[AnyArray, " b"] | None = None,
    ) -> tuple[Float[Array, "b classes"], Intermediates]:
        """Classifies pictures.

        Args:
          images: normalised; sides divisible by `downsample`.
          key: random key in training; None in evaluation (no dropout).
          counts: which pictures count in training, the first ones; None for all.

        Returns:
          Logits, float32 or wider, and intermediates by name. What is not used costs nothing under `jax.jit`; outside
          of it everything is computed, attention between all pairs of pixels included.
          - `embedding`: activations `(b, H, W, d)` before the first layer.
          - `layers`: for each layer a dictionary: `input` and `output`, activations; `attention`, `(h, i, j, k, l)`
            where it does not depend on content, else `(b, h, i, j, k, l)`, without dropout; `position_scores` and
            `content_scores`, score terms by name; `separate_scores`, the latter in all terms of eq. 7.
          - `pixel_logits`: `(b, H, W, classes)`, the classifier on every pixel. Their mean is the logits.
        """
        pixels = jnp.asarray(images)
        x = space_to_depth(pixels, self.downsample)
        x = self.embedding(jnp.moveaxis(x, 0, 2) if self.pixels_first else x)
        intermediates: Intermediates = {"embedding": self.pictures_first(x), "layers": []}
        counted = None if counts is None else int(np.sum(counts))
        for n, block in enumerate(self.blocks):
            layer = {"input": self.pictures_first(x), **attention_of(block.attention, self.pictures_first(x))}
            x = block(x, None if key is None else jax.random.fold_in(key, n), counted)
            intermediates["layers"].append(layer | {"output": self.pictures_first(x)})
        logits = self.classifier(x.mean(axis=(0, 1) if self.pixels_first else (1, 2)))
        intermediates["pixel_logits"] = self.pictures_first(self.classifier(x))
        return logits.astype(at_least_float32(logits.dtype)), intermediates

    def pictures_first(self, x: Float[Array, "..."]) -> Activations:
        """Returns activations as `(b, H, W, d)`; where `pixels_first`, `x` is `(H, W, b, d)`."""
        return jnp.moveaxis(x, 2, 0) if self.pixels_first else x

    def attention(self, image_shape: Sequence[int]) -> list[Float[Array, "h i j k l"]]:
        """Returns attention of a position-only network at a picture size, one array per layer."""
        size = image_shape[0] // self.downsample, image_shape[1] // self.downsample
        return [block.attention.position_probabilities(size) for block in self.blocks]

    def implementations(self, batch: int, image_shape: Sequence[int], *, training: bool) -> list[str]:
        """Returns the name of the attention implementation that runs in every layer, for a batch of pictures."""
        height, width = (size // self.downsample for size in image_shape[:2])
        shape = (batch, height, width, self.embedding.out_features)
        return [block.attention.implementation_for(shape, training=training) for block in self.blocks]

    @property
    def depends_on_content(self) -> bool:
        """Whether the attention of any layer differs from picture to picture."""
        return any(block.attention.depends_on_content for block in self.blocks)


def attention_of(layer: Any, x: Activations) -> Intermediates:
    """Returns by name what a layer, or what stands in for one, attends to; see `AttentionClassifier`."""
    return {
        "attention": layer.probabilities(x),
        "position_scores": layer.position_terms(x.shape[1], x.shape[2]),
        "content_scores": layer.content_terms(x),
        "separate_scores": getattr(layer, "separate_terms", layer.content_terms)(x),
    }
