"""The paper's baseline: ResNets for CIFAR (3x3 stem with stride 1, no max-pool, stages 64/128/256/512)."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from attn_cnn_jax.arrays import AnyArray
from attn_cnn_jax.models.convolutional import ConvolutionalAttention
from attn_cnn_jax.models.layers import at_least_float32, linear, uniform

# Blocks per stage, by depth; deeper than 34 they are bottlenecks.
BLOCKS = {
    10: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
DEEPEST_WITHOUT_BOTTLENECKS = 34
EXPANSION = 4  # of a bottleneck: output channels per channel of its 3x3 convolution
WIDTH = 64  # channels of the first stage


def stages(depth: int, width: int = WIDTH) -> list[tuple[int, int]]:
    """Returns, per stage, its number of blocks and its channels, which double from stage to stage."""
    return [(count, width * 2**stage) for stage, count in enumerate(BLOCKS[depth])]


def convolution(
    in_features: int, out_features: int, kernel_size: int, stride: int, *, dtype: DTypeLike, rngs: nnx.Rngs
) -> nnx.Conv:
    """Returns a convolution without bias, padded by `kernel_size // 2` zeros, that starts as PyTorch's default."""
    return nnx.Conv(
        in_features,
        out_features,
        (kernel_size, kernel_size),
        strides=stride,
        padding=kernel_size // 2,
        use_bias=False,
        dtype=dtype,
        param_dtype=at_least_float32(dtype),
        kernel_init=uniform(in_features * kernel_size**2),
        rngs=rngs,
    )


class LayerMaker(NamedTuple):
    """Makes the layers of a ResNet: convolutions, or attention that begins as one (Theorem 1).

    Attributes:
      layers: "convolution" or "attention".
      sharpness: of "attention", `alpha` in one over square pixels.
      dtype: of activations.
      rngs: source of the initial parameters.
    """

    layers: str
    sharpness: float
    dtype: DTypeLike
    rngs: nnx.Rngs

    def __call__(
        self, in_features: int, out_features: int, kernel_size: int, stride: int
    ) -> nnx.Conv | ConvolutionalAttention:
        if self.layers == "convolution":
            return convolution(in_features, out_features, kernel_size, stride, dtype=self.dtype, rngs=self.rngs)
        return ConvolutionalAttention(
            in_features,
            out_features,
            (kernel_size, kernel_size),
            stride=(stride, stride),
            padding=((kernel_size // 2, kernel_size // 2), (kernel_size // 2, kernel_size // 2)),
            sharpness=self.sharpness,
            dtype=self.dtype,
            rngs=self.rngs,
        )

    def norm(self, features: int) -> nnx.BatchNorm:
        return batch_norm(features, dtype=self.dtype, rngs=self.rngs)


def batch_norm(features: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """Returns a batch norm over all devices' pictures; running statistics move by a tenth per step."""
    param_dtype = at_least_float32(dtype)
    norm = nnx.BatchNorm(
        features,
        momentum=0.9,
        epsilon=1e-5,
        use_fast_variance=False,
        dtype=dtype,
        param_dtype=param_dtype,
        rngs=rngs,
    )
    # Flax starts them in float32 also where they are then set to float64.
    norm.mean, norm.var = (nnx.BatchStat(each[...].astype(param_dtype)) for each in (norm.mean, norm.var))
    return norm


class ShortcutBlock(nnx.Module):
    """What residual blocks share: `relu(y + shortcut(x))`, a 1x1 convolution where the shape changes, else identity."""

    shortcut: nnx.Conv | ConvolutionalAttention | None
    shortcut_norm: nnx.BatchNorm | None

    def create_shortcut(self, make: LayerMaker, in_features: int, out_features: int, stride: int) -> None:
        changes = stride != 1 or in_features != out_features
        self.shortcut = make(in_features, out_features, 1, stride) if changes else None
        self.shortcut_norm = make.norm(out_features) if changes else None

    def joined(self, x: Float[Array, "b H W d"], y: Float[Array, "b i j o"], train: bool) -> Float[Array, "b i j o"]:
        if self.shortcut is not None:
            assert self.shortcut_norm is not None
            x = self.shortcut_norm(self.shortcut(x), not train)
        return jax.nn.relu(y + x)


class ResidualBlock(ShortcutBlock):
    """`relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))`, two 3x3 convolutions."""

    def __init__(self, make: LayerMaker, in_features: int, features: int, stride: int):
        self.conv1 = make(in_features, features, 3, stride)
        self.norm1 = make.norm(features)
        self.conv2 = make(features, features, 3, 1)
        self.norm2 = make.norm(features)
        self.create_shortcut(make, in_features, features, stride)

    def __call__(self, x: Float[Array, "b H W d"], train: bool) -> Float[Array, "b i j o"]:
        """Returns the output: `(b, H, W, d) -> (b, H / stride, W / stride, features)`."""
        y = jax.nn.relu(self.norm1(self.conv1(x), not train))
        y = self.norm2(self.conv2(y), not train)
        return self.joined(x, y, train)


class Bottleneck(ShortcutBlock):
    """A residual block of 1x1, 3x3 and 1x1 convolutions, batch norm after each; the 3x3 one has the stride."""

    def __init__(self, make: LayerMaker, in_features: int, features: int, stride: int):
        self.conv1 = make(in_features, features, 1, 1)
        self.norm1 = make.norm(features)
        self.conv2 = make(features, features, 3, stride)
        self.norm2 = make.norm(features)
        self.conv3 = make(features, EXPANSION * features, 1, 1)
        self.norm3 = make.norm(EXPANSION * features)
        self.create_shortcut(make, in_features, EXPANSION * features, stride)

    def __call__(self, x: Float[Array, "b H W d"], train: bool) -> Float[Array, "b i j o"]:
        """Returns the output: `(b, H, W, d) -> (b, H / stride, W / stride, 4 features)`."""
        y = jax.nn.relu(self.norm1(self.conv1(x), not train))
        y = jax.nn.relu(self.norm2(self.conv2(y), not train))
        y = self.norm3(self.conv3(y), not train)
        return self.joined(x, y, train)


class ResNet(nnx.Module):
    """A ResNet for small pictures; the mean over the last stage is the 4x4 average pool of CIFAR."""

    depends_on_content = True

    def __init__(
        self,
        *,
        depth: int = 18,
        width: int = WIDTH,
        image_channels: int = 3,
        num_classes: int = 10,
        layers: str = "convolution",
        sharpness: float = math.inf,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """Creates the network.

        Args:
          depth: one of `BLOCKS`.
          width: channels of the first stage; 64 as in the paper.
          image_channels: of the pictures.
          num_classes: number of classes.
          layers: "convolution", or "attention" that begins as one.
          sharpness: of "attention", `alpha` in one over square pixels.
          dtype: of activations; parameters are float32 or wider.
          rngs: source of the initial parameters.
        """
        make = LayerMaker(layers, sharpness, dtype, rngs)
        self.stem = make(image_channels, width, 3, 1)
        self.stem_norm = make.norm(width)
        blocks, features = [], width
        for stage, (count, channels) in enumerate(stages(depth, width)):
            for n in range(count):
                stride = 2 if stage > 0 and n == 0 else 1
                if depth > DEEPEST_WITHOUT_BOTTLENECKS:
                    blocks.append(Bottleneck(make, features, channels, stride))
                    features = EXPANSION * channels
                else:
                    blocks.append(ResidualBlock(make, features, channels, stride))
                    features = channels
        self.blocks = nnx.List(blocks)
        self.classifier = linear(features, num_classes, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        images: Float[AnyArray, "b H W C"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "b classes"], dict[str, Any]]:
        """Classifies pictures.

        Args:
          images: normalised.
          key: given in training: batch norm then uses and updates with the batch's own statistics.

        Returns:
          Logits, float32 or wider, and intermediates by name: `embedding`, activations after the stem; `layers`, for
          each block `input` and `output`; `pixel_logits`, the classifier on every pixel of the last stage.
        """
        train = key is not None
        x = jax.nn.relu(self.stem_norm(self.stem(jnp.asarray(images)), not train))
        intermediates: dict[str, Any] = {"embedding": x, "layers": []}
        for block in self.blocks:
            y = block(x, train)
            intermediates["layers"].append({"input": x, "output": y})
            x = y
        logits = self.classifier(x.mean(axis=(1, 2)))
        intermediates["pixel_logits"] = self.classifier(x)
        return logits.astype(at_least_float32(logits.dtype)), intermediates
