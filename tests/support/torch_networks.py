"""The paper's networks a second time, in plain PyTorch: the reference for tests of the JAX networks.

Written from the formulas alone and computed the slow, literal way: images stay four-dimensional. Nothing here or in
torch_attention.py, which has the attention layers, imports the rest of the package.

Where each formula is:

- `x = LN(x + drop(dense(attention(x))))`: `Attention`
- `x = LN(x + drop(W2 gelu(W1 x)))`: `Layer`
- layer norm, epsilon inside the square root: `LayerNorm`
- space to depth in channel order `(dy, dx, c)`: `space_to_depth`
- mean over pixels, linear classifier: `AttentionClassifier.forward`
- ResNet for CIFAR: `ResNet`
- SGD with weight decay in the gradient, warm-up and half cosine: `sgd_with_warmup`

Initialisation: linear maps and convolutions keep PyTorch's default, weight and bias uniform in
`+-1/sqrt(fan_in)`; centres, spreads and tables are drawn in their classes.

Every module's attributes are named so that `state_dict()` has the names of the authors' release.
"""

import math

import torch
from torch import nn
from torch.nn import functional

from tests.support.torch_attention import (
    GeneralizedQuadraticSelfAttention,
    LearnedContentSelfAttention,
    LearnedSelfAttention,
    QuadraticSelfAttention,
)

LAYER_NORM_EPSILON = 1e-12


def space_to_depth(images, factor):
    """`(b, H, W, C)` to `(b, H / factor, W / factor, factor * factor * C)`, channel order `(dy, dx, c)`."""
    batch, height, width, channels = images.shape
    tiles = images.reshape(batch, height // factor, factor, width // factor, factor, channels)
    tiles = tiles.permute(0, 1, 3, 2, 4, 5)
    return tiles.reshape(batch, height // factor, width // factor, factor * factor * channels)


class LayerNorm(nn.Module):
    """`weight * (x - mean) / sqrt(variance + epsilon) + bias` over the last axis (biased variance)."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return self.weight * (centred / torch.sqrt(variance + LAYER_NORM_EPSILON)) + self.bias


class DenseAndNorm(nn.Module):
    """`LN(residual + drop(dense(x)))`."""

    def __init__(self, in_size, out_size, dropout):
        super().__init__()
        self.dense = nn.Linear(in_size, out_size)
        self.LayerNorm = LayerNorm(out_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, residual):
        return self.LayerNorm(residual + self.dropout(self.dense(x)))


class Attention(nn.Module):
    """`LN(x + drop(dense(attention(x))))`."""

    def __init__(self, self_attention, hidden_size, dropout):
        super().__init__()
        self.self = self_attention
        self.output = DenseAndNorm(hidden_size, hidden_size, dropout)

    def forward(self, x):
        return self.output(self.self(x), x)


class Intermediate(nn.Module):
    """`gelu(W1 x)` with the exact (erf) GELU."""

    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.dense = nn.Linear(hidden_size, intermediate_size)

    def forward(self, x):
        return functional.gelu(self.dense(x), approximate="none")


class Layer(nn.Module):
    """BERT's post-norm block: attention, then `LN(x + drop(W2 gelu(W1 x)))`."""

    def __init__(self, self_attention, hidden_size, intermediate_size, dropout):
        super().__init__()
        self.attention = Attention(self_attention, hidden_size, dropout)
        self.intermediate = Intermediate(hidden_size, intermediate_size)
        self.output = DenseAndNorm(intermediate_size, hidden_size, dropout)

    def forward(self, x):
        x = self.attention(x)
        return self.output(self.intermediate(x), x)


class Encoder(nn.Module):
    """The layers in order."""

    def __init__(self, layers):
        super().__init__()
        self.layer = nn.Sequential(*layers)

    def forward(self, x):
        return self.layer(x)


class AttentionClassifier(nn.Module):
    """The paper's self-attention network.

    Args:
        encoding: 'quadratic', 'quadratic_generalized', 'learned' or 'learned_content'.
        image_shape: `(H, W, C)`; the learned tables cover it after down-sampling.
        num_heads: one number for all layers, or a list with one number per layer.
        downsample: factor of the space-to-depth step; 1 leaves the images as they are.
        dropout: rate on the probabilities, after `dense` and after `W2`.
    """

    def __init__(
        self,
        encoding="quadratic",
        image_shape=(32, 32, 3),
        num_classes=10,
        hidden_size=400,
        intermediate_size=512,
        num_layers=6,
        num_heads=9,
        downsample=2,
        dropout=0.1,
    ):
        super().__init__()
        height, width, channels = image_shape
        table_shape = (height // downsample, width // downsample)
        heads_per_layer = [num_heads] * num_layers if isinstance(num_heads, int) else list(num_heads)

        def self_attention(heads):
            if encoding == "quadratic":
                return QuadraticSelfAttention(hidden_size, heads, dropout)
            if encoding == "quadratic_generalized":
                return GeneralizedQuadraticSelfAttention(hidden_size, heads, dropout)
            kind = {"learned": LearnedSelfAttention, "learned_content": LearnedContentSelfAttention}[encoding]
            return kind(hidden_size, heads, dropout, table_shape)

        self.downsample = downsample
        self.features_upscale = nn.Linear(downsample * downsample * channels, hidden_size)
        self.encoder = Encoder(
            [Layer(self_attention(heads), hidden_size, intermediate_size, dropout) for heads in heads_per_layer]
        )
        self.classifier = nn.Linear(hidden_size, num_classes)

    def forward(self, images):
        """Normalised images `(b, H, W, C)` to logits `(b, classes)`."""
        x = self.encoder(self.features_upscale(space_to_depth(images, self.downsample)))
        return self.classifier(x.mean(dim=(1, 2)))


class BasicBlock(nn.Module):
    """`relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))`; the shortcut is a 1x1 convolution or x."""

    def __init__(self, in_channels, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return functional.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-10, -18 or -34 for CIFAR: 3x3 stem with stride 1, no max-pool, stages of 64 to 512 channels.

    `width` is the number of channels of the first stage.

    The mean over all pixels that are left is the 4x4 average pool for 32x32 images.
    """

    BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}

    def __init__(self, depth=18, num_classes=10, image_channels=3, width=64):
        super().__init__()
        blocks = self.BLOCKS[depth]
        self.conv1 = nn.Conv2d(image_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self._stage(width, width, blocks[0], stride=1)
        self.layer2 = self._stage(width, 2 * width, blocks[1], stride=2)
        self.layer3 = self._stage(2 * width, 4 * width, blocks[2], stride=2)
        self.layer4 = self._stage(4 * width, 8 * width, blocks[3], stride=2)
        self.linear = nn.Linear(8 * width, num_classes)

    @staticmethod
    def _stage(in_channels, channels, num_blocks, stride):
        first = BasicBlock(in_channels, channels, stride)
        return nn.Sequential(first, *[BasicBlock(channels, channels, 1) for _ in range(num_blocks - 1)])

    def forward(self, images):
        """Normalised images `(b, H, W, C)` to logits `(b, classes)`."""
        x = images.permute(0, 3, 1, 2)
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(x.mean(dim=(2, 3)))


def sgd_with_warmup(model, learning_rate, weight_decay, total_steps, warmup_steps):
    """SGD as in the paper, and its rate at step `t` (0-based).

    Momentum 0.9, not Nesterov: `m = 0.9 m + gradient + weight_decay * parameter`, `parameter -= rate * m`.
    No weight decay on centres and spreads. The caller sets the rate before each step:

        for group in optimizer.param_groups:
            group["lr"] = rate(step)

    Returns:
        The optimizer, and `rate`: `learning_rate * t / warmup_steps` for `t < warmup_steps`, then half a
        cosine from `learning_rate` to 0 at `total_steps`.
    """
    decayed, not_decayed = [], []
    for name, parameter in model.named_parameters():
        is_position = name.endswith(("attention_centers", "attention_spreads"))
        (not_decayed if is_position else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": not_decayed, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=False)

    return optimizer, lambda step: warmup_and_cosine(step, learning_rate, total_steps, warmup_steps)


def warmup_and_cosine(step, learning_rate, total_steps, warmup_steps):
    """The rate of a step (0-based): a linear rise from 0, then half a cosine from `learning_rate` to 0."""
    if step < warmup_steps:
        return learning_rate * step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
