"""The paper's baseline: ResNets for CIFAR (3x3 stem with stride 1, no max-pool, stages 64/128/256/512)."""

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.models.attention.scores import at_least_float32
from attn_cnn_jax.models.convolutional import ConvolutionalAttention
from attn_cnn_jax.models.layers import linear, uniform

BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
CHANNELS = (64, 128, 256, 512)


def convolution(
    in_features: int, out_features: int, kernel_size: int, stride: int, *, dtype: jnp.dtype, rngs: nnx.Rngs
) -> nnx.Conv:
    """A convolution without bias, padded by `kernel_size // 2` zeros, that starts as PyTorch's default."""
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


def layer(
    config: ConfigDict, in_features: int, out_features: int, kernel_size: int, stride: int, *, rngs: nnx.Rngs
) -> nnx.Conv | ConvolutionalAttention:
    """A convolution, or the attention that begins as one, as `config.layers` says."""
    dtype = jnp.dtype(config.dtype)
    if config.layers == "convolution":
        return convolution(in_features, out_features, kernel_size, stride, dtype=dtype, rngs=rngs)
    return ConvolutionalAttention(
        in_features,
        out_features,
        (kernel_size, kernel_size),
        stride=(stride, stride),
        padding=((kernel_size // 2, kernel_size // 2),) * 2,
        sharpness=config.sharpness,
        dtype=dtype,
        rngs=rngs,
    )


def batch_norm(features: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """Batch norm over all devices' pictures; running statistics move by a tenth a step."""
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


class ResidualBlock(nnx.Module):
    """`relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))`, two 3x3 convolutions."""

    def __init__(self, config: ConfigDict, in_features: int, features: int, stride: int, *, rngs: nnx.Rngs):
        common = {"dtype": jnp.dtype(config.dtype), "rngs": rngs}
        self.conv1 = layer(config, in_features, features, 3, stride, rngs=rngs)
        self.norm1 = batch_norm(features, **common)
        self.conv2 = layer(config, features, features, 3, 1, rngs=rngs)
        self.norm2 = batch_norm(features, **common)
        changes = stride != 1 or in_features != features
        self.shortcut = layer(config, in_features, features, 1, stride, rngs=rngs) if changes else None
        self.shortcut_norm = batch_norm(features, **common) if changes else None

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """`(b, H, W, C) -> (b, H / stride, W / stride, features)`."""
        y = jax.nn.relu(self.norm1(self.conv1(x), use_running_average=not train))
        y = self.norm2(self.conv2(y), use_running_average=not train)
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(x), use_running_average=not train)
        return jax.nn.relu(y + x)


class ResNet(nnx.Module):
    """ResNet-10, 18 or 34 for small pictures; the mean over the last stage is the 4x4 average pool of CIFAR."""

    depends_on_content = True

    def __init__(self, config: ConfigDict, *, rngs: nnx.Rngs):
        common = {"dtype": jnp.dtype(config.dtype), "rngs": rngs}
        self.stem = layer(config, config.image_shape[2], CHANNELS[0], 3, 1, rngs=rngs)
        self.stem_norm = batch_norm(CHANNELS[0], **common)
        blocks, features = [], CHANNELS[0]
        for stage, count in enumerate(BLOCKS[config.depth]):
            for n in range(count):
                stride = 2 if stage > 0 and n == 0 else 1
                blocks.append(ResidualBlock(config, features, CHANNELS[stage], stride, rngs=rngs))
                features = CHANNELS[stage]
        self.blocks = nnx.List(blocks)
        self.classifier = linear(features, config.num_classes, **common)

    def __call__(self, images: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """Logits `(b, classes)`, float32 or wider, of normalised pictures `(b, H, W, C)`.

        With a `key`, as in training, batch norm uses and updates with the batch's own statistics.
        """
        train = key is not None
        x = jax.nn.relu(self.stem_norm(self.stem(images), use_running_average=not train))
        for block in self.blocks:
            x = block(x, train)
        logits = self.classifier(x.mean(axis=(1, 2)))
        return logits.astype(at_least_float32(logits.dtype))
