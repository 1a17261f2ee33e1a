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
from attn_cnn_jax.options import BLOCKS, WIDTH

DEEPEST_WITHOUT_BOTTLENECKS = 34
EXPANSION = 4  # of a bottleneck: output channels per channel of its 3x3 convolution


class LayerMaker(NamedTuple):
    """Makes the layers of a ResNet, whose attributes these are: convolutions, or attention that begins as one."""

    layers: str
    sharpness: float
    dtype: DTypeLike
    rngs: nnx.Rngs

    def __call__(
        self, in_features: int, out_features: int, kernel_size: int, stride: int
    ) -> nnx.Conv | ConvolutionalAttention:
        """A layer padded by `kernel_size // 2` zeros, without bias; convolutions start as PyTorch's default."""
        shape, pads = (in_features, out_features, (kernel_size, kernel_size)), (kernel_size // 2, kernel_size // 2)
        common = {"padding": (pads, pads), "dtype": self.dtype, "rngs": self.rngs}
        if self.layers == "attention":
            return ConvolutionalAttention(*shape, stride=(stride, stride), sharpness=self.sharpness, **common)
        types = {"param_dtype": at_least_float32(self.dtype), "kernel_init": uniform(in_features * kernel_size**2)}
        return nnx.Conv(*shape, strides=stride, use_bias=False, **types, **common)

    def norm(self, features: int) -> nnx.BatchNorm:
        """A batch norm over all devices' images; running statistics move by a tenth per step."""
        types = {"dtype": self.dtype, "param_dtype": at_least_float32(self.dtype)}
        norm = nnx.BatchNorm(features, momentum=0.9, epsilon=1e-5, use_fast_variance=False, **types, rngs=self.rngs)
        # Flax starts them in float32 also where they are then set to float64.
        norm.mean, norm.var = (nnx.BatchStat(each[...].astype(types["param_dtype"])) for each in (norm.mean, norm.var))
        return norm


class ResidualBlock(nnx.Module):
    """`relu(y + shortcut(x))`, where `y` is `x` after convolutions with batch norms, and relu between them.

    The shortcut is the identity, or a 1x1 convolution with batch norm where the shape changes. The `depth` convolutions
    are `conv1` with `norm1` and so on.
    """

    def __init__(self, make: LayerMaker, in_features: int, features: int, stride: int, *, bottleneck: bool):
        """Creates two 3x3 convolutions to `features` channels, of which the first has the stride.

        A bottleneck has 1x1, 3x3 and 1x1 convolutions to `4 features` channels instead.
        """
        shapes = [(in_features, features, 3, stride), (features, features, 3, 1)]
        if bottleneck:
            shapes = [(in_features, features, 1, 1), (features, features, 3, stride)]
            shapes.append((features, EXPANSION * features, 1, 1))
        out_features = shapes[-1][1]
        self.depth = len(shapes)
        for n, shape in enumerate(shapes, start=1):
            setattr(self, f"conv{n}", make(*shape))
            setattr(self, f"norm{n}", make.norm(shape[1]))
        changes = stride != 1 or in_features != out_features
        self.shortcut = make(in_features, out_features, 1, stride) if changes else None
        self.shortcut_norm = make.norm(out_features) if changes else None

    def __call__(self, x: Float[Array, "b H W d"], train: bool) -> Float[Array, "b i j o"]:
        """The output, `(b, H / stride, W / stride, o)`."""
        y = x
        for n in range(1, self.depth + 1):
            y = getattr(self, f"norm{n}")(getattr(self, f"conv{n}")(y), not train)
            y = jax.nn.relu(y) if n < self.depth else y
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x), not train)
        return jax.nn.relu(y + x)


class ResNet(nnx.Module):
    """A ResNet for small images; the mean over the last stage is the 4x4 average pool of CIFAR."""

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
          depth: a key of `options.BLOCKS`.
          width: channels of the first stage; 64 as in the paper.
          layers: "convolution", or "attention" that begins as one.
          sharpness: of "attention", `alpha` in one over square pixels.
          dtype: of activations; parameters are float32 or wider.
        """
        make = LayerMaker(layers, sharpness, dtype, rngs)
        self.stem = make(image_channels, width, 3, 1)
        self.stem_norm = make.norm(width)
        bottleneck, blocks, features = depth > DEEPEST_WITHOUT_BOTTLENECKS, [], width
        for stage, count in enumerate(BLOCKS[depth]):
            channels = width * 2**stage
            for n in range(count):
                stride = 2 if stage > 0 and n == 0 else 1
                blocks.append(ResidualBlock(make, features, channels, stride, bottleneck=bottleneck))
                features = EXPANSION * channels if bottleneck else channels
        self.blocks = nnx.List(blocks)
        self.classifier = linear(features, num_classes, dtype=dtype, rngs=rngs)

    def __call__(
        self, images: Float[AnyArray, "b H W C"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b classes"], dict[str, Any]]:
        """Classifies normalised images; with a key, in training, by the batch's own statistics, which batch norm keeps.

        Returns:
          Logits, float32 or wider, and intermediates by name: `embedding`, activations after the stem; `layers`, for
          each block `input` and `output`; `pixel_logits`, the classifier on every pixel of the last stage.
        """
        train = key is not None
        x = jax.nn.relu(self.stem_norm(self.stem(jnp.asarray(images)), not train))
        out: dict[str, Any] = {"embedding": x, "layers": []}
        for block in self.blocks:
            y = block(x, train)
            out["layers"].append({"input": x, "output": y})
            x = y
        out["pixel_logits"] = self.classifier(x)
        logits = self.classifier(x.mean(axis=(1, 2)))
        return logits.astype(at_least_float32(logits.dtype)), out
