"""The paper's classifier: pixels grouped two by two, blocks of self-attention, mean over pixels, linear map."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from attn_cnn_jax.arrays import Activations, AnyArray, Attention
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.encoding import Sizes
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings import Content, encoding_class
from attn_cnn_jax.models.initialisation import initialise
from attn_cnn_jax.models.layers import at_least_float32, check_rate, check_sizes, dropout, flattened, layer_norm, linear

Intermediates = dict[str, Any]


def window_side(kernel: Any, channels: int) -> int:
    """Side of the windows of pixels that the kernel of an embedding reads, `(side^2 channels, d)`; see resizing.py."""
    return math.isqrt(kernel.shape[0] // channels)


def patches(images: Float[Array, "b H W C"], size: int, window: int) -> Float[Array, "b i j f"]:
    """Images in which windows around the middle of squares of `size` pixels are one pixel, `f = window^2 C`.

    Channels are in the order `(dy, dx, C)`; beyond the border its pixels repeat.
    """
    before = (window - size) // 2  # pixels from a window's first to its square's; negative where the window is smaller
    x = images
    for axis in (1, 2) if window > size else ():  # not `jnp.pad`, whose repeats of length 0 are 1 in jax2onnx
        first, last = (jax.lax.slice_in_dim(x, n, n + 1, axis=axis) for n in (0, x.shape[axis] - 1))
        x = jnp.concatenate([*before * [first], x, *(window - size - before) * [last]], axis)
    rows, columns = (n - size + 1 for n in images.shape[1:3])
    along = range(max(0, -before), max(0, -before) + window)
    places = [(dy, dx) for dy in along for dx in along]
    return jnp.concatenate([x[:, dy : dy + rows : size, dx : dx + columns : size] for dy, dx in places], axis=-1)


class Block(nnx.Module):
    """BERT's post-norm block: `x = LN(x + drop(dense(attention(x))))`, `x = LN(x + drop(W2 gelu(W1 x)))`.

    Or ViT's pre-norm block: `x = x + drop(attention(LN(x)))`, `x = x + drop(W2 gelu(W1 LN(x)))`, without `dense`. For
    inference `dense` may be None in both: see merging.py.
    """

    def __init__(
        self,
        attention: SelfAttention,
        *,
        hidden_size: int,
        intermediate_size: int,
        pre_norm: bool = False,
        dropout_rate: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_sizes(hidden_size=hidden_size, intermediate_size=intermediate_size)
        check_rate("dropout_rate", dropout_rate)
        if (channels := attention.output.out_features) != hidden_size:
            raise UserError(f"hidden_size={hidden_size}: attention returns {channels} channels, added to the input")

        common = {"dtype": dtype, "rngs": rngs}
        self.attention = attention
        self.dense: nnx.Linear | None = None if pre_norm else linear(hidden_size, hidden_size, **common)
        self.attention_norm = layer_norm(hidden_size, **common)
        self.intermediate = linear(hidden_size, intermediate_size, **common)
        self.output = linear(intermediate_size, hidden_size, **common)
        self.output_norm = layer_norm(hidden_size, **common)
        self.pre_norm, self.dropout_rate = pre_norm, dropout_rate

    def __call__(self, x: Activations, key: PRNGKeyArray | None = None) -> Activations:
        """Returns the output of the block; `key` is given in training."""
        return self.with_intermediates(x, key)[0]

    def with_intermediates(
        self, x: Activations, key: PRNGKeyArray | None = None, *, pixels_first: bool = False
    ) -> tuple[Activations, Intermediates]:
        """Returns the output, and by name what attention reads, the output and the intermediates of attention.

        What has a name is images first. With `pixels_first` activations are `(H, W, b, d)`: images split over devices
        are not flattened behind pixels. Else all axes but the last are one, see `layers.flattened`.
        """
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        images_first = (lambda x: jnp.moveaxis(x, 2, 0)) if pixels_first else (lambda x: x)
        # What lies between matrix products is computed again for gradients: storing it costs 50% more memory and saves
        # no time on CPUs. On GPUs a step takes a twelfth longer with norms computed again.
        again = jax.checkpoint if self.attention.target == "cpu" else lambda function: function
        gelu = jax.checkpoint(functools.partial(jax.nn.gelu, approximate=False))

        read = images_first(again(self.attention_norm)(x) if self.pre_norm else x)
        attended, out = self.attention.with_intermediates(read, keys[0])
        out["input"], shape = read, x.shape
        if pixels_first:
            attended = jnp.moveaxis(attended, 0, 2)
        else:
            x, attended = x.reshape(-1, shape[-1]), attended.reshape(-1, shape[-1])

        def added(norm, key, x, change):
            """`LN(x + drop(change))`, or in a pre-norm block the sum alone."""

            def total(x, change):
                x = x + dropout(key, change, self.dropout_rate)
                return x if self.pre_norm else norm(x)

            return again(total)(x, change)

        if self.dense is not None:
            attended = self.dense(attended)
        x = added(self.attention_norm, keys[1], x, attended)
        read = again(self.output_norm)(x) if self.pre_norm else x
        x = added(self.output_norm, keys[2], x, self.output(gelu(self.intermediate(read)))).reshape(shape)
        out["output"] = images_first(x)
        return x, out


class AttentionClassifier(nnx.Module):
    """The network of the paper's experiments; its values are those of `config.model`, see config/base.py."""

    def __init__(
        self,
        *,
        image_shape: Sequence[int],
        num_classes: int,
        encoding: str,
        encoding_options: Mapping[str, Any],
        content: bool,
        gate: bool,
        block: str,
        num_layers: int,
        num_heads: int | tuple[int, ...],
        hidden_size: int,
        head_size: int,
        intermediate_size: int,
        downsample: int,
        window: int,
        dropout: float,
        attention_dropout: float,
        attention_dropout_on: str,
        implementation: str,
        init: str,
        locality: float,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        """Creates the network; all others are the values of `config.model`.

        Args:
          image_shape: height, width and channels of the images; learned tables reach across this size.
          encoding, encoding_options: name of a registered encoding, and the values of its own options.
          num_heads: `N_h`, one number or (after pruning) one per layer.
          block: "post_norm" or "pre_norm", see `Block`; pre-norm blocks are followed by one more norm.
          window: side of what the embedding reads around each square of `downsample` pixels, see `patches`; 0: of it.
          hidden_size, head_size: `D` and `D_h`, where no 0 stands for `D`.
          dropout: rate after `dense` and after the feed-forward part; of attention see `SelfAttention`.
        """
        common = {"dtype": dtype, "rngs": rngs}
        height, width, channels = image_shape
        grid = height // downsample, width // downsample
        kind = encoding_class(encoding)
        counts = (num_heads,) * num_layers if isinstance(num_heads, int) else tuple(num_heads)

        self.downsample = downsample
        self.embedding = linear(channels * (window or downsample) ** 2, hidden_size, **common)
        blocks: list[Block] = []
        for n, heads in enumerate(counts):
            sizes = Sizes(heads, hidden_size, head_size, grid, jnp.dtype(dtype), n, len(counts))
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
            widths = {"hidden_size": hidden_size, "intermediate_size": intermediate_size}
            blocks.append(Block(layer, **widths, pre_norm=block == "pre_norm", dropout_rate=dropout, **common))
            if init != "paper":
                initialise(layer, blocks[n].dense, init, locality, rngs)
        self.blocks = nnx.List(blocks)
        self.norm = nnx.data(layer_norm(hidden_size, **common) if block == "pre_norm" else None)
        self.classifier = linear(hidden_size, num_classes, **common)

    def __call__(
        self, images: Float[AnyArray, "b H W C"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b classes"], Intermediates]:
        """Classifies images.

        Args:
          images: normalised; sides divisible by `downsample`.
          key: random key in training; None in evaluation (no dropout).

        Returns:
          Logits, float32 or wider, and intermediates by name. What is not used costs nothing under `jax.jit`; outside
          of it everything is computed, attention between all pairs of pixels included.

          - `embedding`: activations `(b, H, W, d)` before the first layer.
          - `layers`: for each layer `input`, what its attention reads, and `output`, activations; `attention`,
            `position_scores` and `content_scores`, see `SelfAttention.with_intermediates`, without dropout.
          - `pixel_logits`: `(b, H, W, classes)`, the classifier on every pixel. Their mean is the logits.
        """
        out: Intermediates = {"layers": [{} for _ in self.blocks]}
        out["embedding"] = x = self.embedded(images)
        # Pixels before images where attention has them in this order, see attention/accelerator.py.
        pixels_first = self.blocks[0].attention.target != "cpu" and not self.depends_on_content
        x = jnp.moveaxis(x, 0, 2) if pixels_first else x
        for n, block in enumerate(self.blocks):
            block_key = None if key is None else jax.random.fold_in(key, n)
            x, out["layers"][n] = block.with_intermediates(x, block_key, pixels_first=pixels_first)
        logits, out["pixel_logits"] = self.classified(x, pixels_first=pixels_first)
        return logits, out

    def embedded(self, images: Float[AnyArray, "b H W C"]) -> Float[Array, "b i j d"]:
        """Activations before the first block."""
        images = jnp.asarray(images)
        window = window_side(self.embedding.kernel, images.shape[3])
        return flattened(self.embedding, patches(images, self.downsample, window))

    def classified(
        self, x: Float[Array, "_ _ _ d"], *, pixels_first: bool = False
    ) -> tuple[Float[Array, "b classes"], Float[Array, "b H W classes"]]:
        """Logits, and those of every pixel, from the activations after the last block; see `Block`."""
        x = x if self.norm is None else self.norm(x)
        logits = self.classifier(x.mean(axis=(0, 1) if pixels_first else (1, 2)))
        of_pixels = flattened(self.classifier, jnp.moveaxis(x, 2, 0) if pixels_first else x)
        return logits.astype(at_least_float32(logits.dtype)), of_pixels

    def attention(self, image_shape: Sequence[int]) -> list[Attention]:
        """Attention of a position-only network at an image size, one array per layer."""
        height, width = image_shape[0] // self.downsample, image_shape[1] // self.downsample
        x = jnp.zeros((1, height, width, self.embedding.out_features))
        return [block.attention.probabilities(x) for block in self.blocks]

    @property
    def depends_on_content(self) -> bool:
        """Whether the attention of any layer differs from image to image."""
        return any(block.attention.depends_on_content for block in self.blocks)
