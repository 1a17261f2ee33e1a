"""The paper's classifier: pixels grouped two by two, post-norm blocks of self-attention, mean, linear map."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.attention.scores import at_least_float32
from attn_cnn_jax.models.encodings.base import (
    Encoding,
    GeneralizedQuadratic,
    Learned,
    Quadratic,
    RelativeTables,
)
from attn_cnn_jax.models.encodings.content import Absolute, Relative
from attn_cnn_jax.models.grid import identity_kernel, start_on_grid
from attn_cnn_jax.models.layers import dropout, linear

LAYER_NORM_EPSILON = 1e-12  # inside the square root, as BERT has it


def space_to_depth(images: jax.Array, size: int) -> jax.Array:
    """Invertible down-sampling: `(b, H, W, C) -> (b, H / size, W / size, size^2 C)`, order `(dy, dx, c)`."""
    b, height, width, channels = images.shape
    x = images.reshape(b, height // size, size, width // size, size, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, height // size, width // size, size * size * channels)


class Block(nnx.Module):
    """BERT's post-norm block: `x = LN(x + drop(dense(attention(x))))`, `x = LN(x + drop(W2 gelu(W1 x)))`.

    For inference `dense` may be None: see merging.py.
    """

    def __init__(self, attention: SelfAttention, config: ConfigDict, *, rngs: nnx.Rngs):
        hidden, dtype = config.hidden_size, jnp.dtype(config.dtype)

        def layer_norm():
            return nnx.LayerNorm(
                hidden,
                epsilon=LAYER_NORM_EPSILON,
                use_fast_variance=False,
                dtype=dtype,
                param_dtype=at_least_float32(dtype),
                rngs=rngs,
            )

        self.attention = attention
        self.dense = linear(hidden, hidden, dtype=dtype, rngs=rngs)
        self.attention_norm = layer_norm()
        self.intermediate = linear(hidden, config.intermediate_size, dtype=dtype, rngs=rngs)
        self.output = linear(config.intermediate_size, hidden, dtype=dtype, rngs=rngs)
        self.output_norm = layer_norm()
        self.dropout_rate = config.dropout

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """`(b, H, W, D) -> (b, H, W, D)`; `key` is given in training."""
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)

        # For gradients, what lies between matrix products is computed again: to keep it takes half as much memory
        # again, and on CPUs no less time.
        def add_and_norm(norm, key, x, change):
            return jax.checkpoint(lambda x, change: norm(x + dropout(key, change, self.dropout_rate)))(x, change)

        gelu = jax.checkpoint(functools.partial(jax.nn.gelu, approximate=False))

        attended = self.attention(x, keys[0])
        if self.dense is not None:
            attended = self.dense(attended)
        x = add_and_norm(self.attention_norm, keys[1], x, attended)
        transformed = self.output(gelu(self.intermediate(x)))
        return add_and_norm(self.output_norm, keys[2], x, transformed)


class AttentionClassifier(nnx.Module):
    """The network of the paper's experiments."""

    def __init__(self, config: ConfigDict, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        height, width, channels = config.image_shape
        self.downsample = config.downsample
        self.embedding = linear(channels * config.downsample**2, config.hidden_size, dtype=dtype, rngs=rngs)
        grid = (height // config.downsample, width // config.downsample)
        shared = relative_tables(config, grid, rngs=rngs) if config.share_tables else None
        self.blocks = nnx.List(
            [
                Block(self_attention(config, grid, num_heads, shared, rngs=rngs), config, rngs=rngs)
                for num_heads in heads_by_layer(config)
            ]
        )
        self.classifier = linear(config.hidden_size, config.num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array, *, key: jax.Array | None = None, return_attention: bool = False):
        """Classifies pictures.

        Args:
          images: normalised, `(b, H, W, C)` floating point; sides divisible by `downsample`.
          key: random key in training; None in evaluation (no dropout).
          return_attention: also return every layer's attention.

        Returns:
          Logits `(b, classes)` in float32 or wider; with `return_attention` a pair of them and a list of
          one array a layer: `(h, i, j, k, l)` where attention does not depend on content, else
          `(b, h, i, j, k, l)`.
        """
        x = self.embedding(space_to_depth(images, self.downsample))
        attention = []
        for n, block in enumerate(self.blocks):
            if return_attention:
                attention.append(with_pixel_axes(block.attention.probabilities(x), x.shape[1:3]))
            x = block(x, None if key is None else jax.random.fold_in(key, n))
        logits = self.classifier(x.mean(axis=(1, 2)))
        logits = logits.astype(at_least_float32(logits.dtype))
        return (logits, attention) if return_attention else logits

    def attention(self, image_shape: tuple[int, int, int]) -> list[jax.Array]:
        """Attention of a position-only network at a picture size: one `(h, i, j, k, l)` a layer."""
        height, width = (size // self.downsample for size in image_shape[:2])
        shape = jax.ShapeDtypeStruct((1, height, width, 0), jnp.float32)
        return [with_pixel_axes(block.attention.probabilities(shape), (height, width)) for block in self.blocks]

    def kernels(self, batch: int, image_shape: tuple[int, int, int], *, training: bool) -> list[str]:
        """Name of the attention kernel that runs in every layer, for a batch of pictures; see kernels.py."""
        height, width = (size // self.downsample for size in image_shape[:2])
        shape = (batch, height, width, self.embedding.out_features)
        return [block.attention.kernel_for(shape, training=training) for block in self.blocks]

    @property
    def depends_on_content(self) -> bool:
        """Whether any layer's attention differs from picture to picture."""
        return any(block.attention.depends_on_content for block in self.blocks)


def with_pixel_axes(probabilities: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """`(..., q, p) -> (..., i, j, k, l)`."""
    return probabilities.reshape(*probabilities.shape[:-2], *grid, *grid)


def heads_by_layer(config: ConfigDict) -> tuple[int, ...]:
    """Number of heads of every layer: one number for all, or (after pruning) one a layer."""
    heads = config.num_heads
    return (heads,) * config.num_layers if isinstance(heads, int) else tuple(heads)


def self_attention(
    config: ConfigDict,
    grid: tuple[int, int],
    num_heads: int,
    shared: RelativeTables | None,
    *,
    rngs: nnx.Rngs,
) -> SelfAttention:
    """One attention layer as the configuration says."""
    layer = SelfAttention(
        encoding(config, grid, num_heads, shared, rngs=rngs),
        content=config.content,
        num_heads=num_heads,
        hidden_size=config.hidden_size,
        head_size=head_size(config),
        dropout_rate=config.attention_dropout,
        kernel=config.kernel,
        dtype=jnp.dtype(config.dtype),
        rngs=rngs,
        gated=config.gate,
        dropout_on=config.attention_dropout_on,
    )
    if config.init == "grid":
        identity = config.init_values == "identity"
        start_on_grid(layer, config.locality, identity_kernel(num_heads, config.hidden_size) if identity else None)
    return layer


def head_size(config: ConfigDict) -> int:
    """`D_h`; 0 in the configuration stands for the hidden size, as in the paper."""
    return config.head_size or config.hidden_size


def relative_tables(config: ConfigDict, grid: tuple[int, int], *, rngs: nnx.Rngs) -> RelativeTables:
    """Tables of learned relative positions that reach across a picture of `grid` pixels."""
    return RelativeTables(grid, config.hidden_size, dtype=jnp.dtype(config.dtype), rngs=rngs)


def encoding(
    config: ConfigDict,
    grid: tuple[int, int],
    num_heads: int,
    shared: RelativeTables | None,
    *,
    rngs: nnx.Rngs,
) -> Encoding:
    """The encoding that `config.encoding` names. A new encoding is added here and in config.py."""
    common = {"dtype": jnp.dtype(config.dtype), "rngs": rngs}
    sizes = (num_heads, config.hidden_size, head_size(config))
    match config.encoding:
        case "quadratic":
            return Quadratic(num_heads, **common)
        case "quadratic_generalized":
            return GeneralizedQuadratic(num_heads, **common)
        case "learned":
            tables = shared or relative_tables(config, grid, rngs=rngs)
            return Learned(num_heads, config.hidden_size, tables, **common)
        case "relative":
            tables = shared or relative_tables(config, grid, rngs=rngs)
            return Relative(*sizes, tables, terms=tuple(config.relative_terms), **common)
        case "absolute_learned":
            return Absolute(*sizes, grid=grid, **common)
        case "absolute_sinusoidal":
            return Absolute(*sizes, grid=None, **common)
    raise ValueError(f"unknown encoding {config.encoding!r}")
