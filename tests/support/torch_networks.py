"""The paper's networks a second time, in plain PyTorch: the reference for tests, and a contender in benchmarks.

Written from the formulas alone and computed the slow, literal way: images stay four-dimensional, probabilities are one
full `(i, j, h, k, l)` tensor, applied by `einsum`. Linear maps and convolutions keep PyTorch's default start. The names
of attributes give those of the authors' release in `state_dict()`.

Axis letters: `b` image, `i j` query row and column, `k l` key row and column, `h` head, `d` channel.
"""

import math

import torch
from torch import nn
from torch.nn import functional

LAYER_NORM_EPSILON = 1e-12


def axis_shifts(size, device):
    """Shifts `key - query` along one axis, `(query, key)` whole numbers."""
    position = torch.arange(size, device=device)
    return position[None, :] - position[:, None]


def over_pixels(by_row, by_column):
    """Something about rows `(i, k, h)` and columns `(j, l, h)`, both to broadcast as `(i, j, h, k, l)`."""
    return by_row.permute(0, 2, 1)[:, None, :, :, None], by_column.permute(0, 2, 1)[None, :, :, None, :]


class SelfAttention(nn.Module):
    """Softmax of scores, head averages, value map of the concatenated heads; subclasses have the scores."""

    def __init__(self, hidden_size, num_heads, dropout):
        super().__init__()
        self.value = nn.Linear(num_heads * hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        """Images `(b, i, j, d)` to new ones; scores are `(i, j, h, k, l)`, of content `(b, i, j, h, k, l)`."""
        scores = self.scores(x)
        dropped = self.dropout(functional.softmax(scores.flatten(-2), dim=-1).reshape(scores.shape))
        equation = "ijhkl,bkld->bijhd" if dropped.ndim == 5 else "bijhkl,bkld->bijhd"
        return self.value(torch.einsum(equation, dropped, x).flatten(-2))


class QuadraticSelfAttention(SelfAttention):
    """`-alpha_h |delta - Delta_h|^2`, `alpha = s^2 / 2` (eq. 9); centres `Delta` (h, 2), spreads `s` (h,)."""

    def __init__(self, hidden_size, num_heads, dropout):
        super().__init__(hidden_size, num_heads, dropout)
        self.attention_centers = nn.Parameter(2.0 * torch.randn(num_heads, 2))
        self.attention_spreads = nn.Parameter(1.0 + 0.01 * torch.randn(num_heads))

    def offsets(self, x):
        """`delta - Delta_h`: its row and its column part."""
        shifts = [axis_shifts(size, x.device)[:, :, None] for size in x.shape[1:3]]
        return over_pixels(*(shift - self.attention_centers[:, axis] for axis, shift in enumerate(shifts)))

    def scores(self, x):
        row, column = self.offsets(x)
        alpha = self.attention_spreads.square() / 2
        return -alpha[:, None, None] * (row.square() + column.square())


class GeneralizedQuadraticSelfAttention(QuadraticSelfAttention):
    """`-1/2 (delta - mu_h)^T S_h S_h^T (delta - mu_h)`; centres `mu` (h, 2), spreads `S` (h, 2, 2)."""

    def __init__(self, hidden_size, num_heads, dropout):
        super().__init__(hidden_size, num_heads, dropout)
        self.attention_spreads = nn.Parameter(torch.eye(2) + 0.01 * torch.randn(num_heads, 2, 2))

    def scores(self, x):
        row, column = self.offsets(x)
        entry = (self.attention_spreads @ self.attention_spreads.transpose(-1, -2))[:, :, :, None, None]
        mixed = (entry[:, 0, 1] + entry[:, 1, 0]) * (row * column)
        return -0.5 * (entry[:, 0, 0] * row.square() + mixed + entry[:, 1, 1] * column.square())


class LearnedSelfAttention(SelfAttention):
    """`w_row^(h) . e_row[delta_row] + w_col^(h) . e_col[delta_col]`; tables of `2M - 1` vectors for `M` positions.

    In the release's names `row` is the position along a row: `row_embeddings` and `head_keys_row` are `e_col` and
    `w_col` of the formula.
    """

    def __init__(self, hidden_size, num_heads, dropout, table_shape):
        super().__init__(hidden_size, num_heads, dropout)
        self.table_shape = rows, columns = table_shape
        self.row_embeddings = nn.Embedding(2 * columns - 1, hidden_size)
        self.col_embeddings = nn.Embedding(2 * rows - 1, hidden_size)
        self.head_keys_row = nn.Linear(hidden_size, num_heads, bias=False)
        self.head_keys_col = nn.Linear(hidden_size, num_heads, bias=False)

    def scores(self, x):
        rows, columns = self.table_shape
        row_vectors = self.col_embeddings(axis_shifts(x.shape[1], x.device) + rows - 1)  # (i, k, d)
        column_vectors = self.row_embeddings(axis_shifts(x.shape[2], x.device) + columns - 1)  # (j, l, d)
        row, column = over_pixels(self.head_keys_col(row_vectors), self.head_keys_row(column_vectors))
        return row + column


class LearnedContentSelfAttention(LearnedSelfAttention):
    """The learned position score plus `q . k / sqrt(D_h)`, where `D_h` is the hidden size for every head."""

    def __init__(self, hidden_size, num_heads, dropout, table_shape):
        super().__init__(hidden_size, num_heads, dropout, table_shape)
        self.num_heads = num_heads
        self.query = nn.Linear(hidden_size, num_heads * hidden_size)
        self.key = nn.Linear(hidden_size, num_heads * hidden_size)

    def scores(self, x):
        query, key = (layer(x).unflatten(-1, (self.num_heads, -1)) for layer in (self.query, self.key))
        content = torch.einsum("bijhd,bklhd->bijhkl", query, key) / math.sqrt(query.shape[-1])
        return content + super().scores(x)


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


class Layer(nn.Module):
    """BERT's post-norm block: `x = LN(x + drop(dense(attention(x))))`, `x = LN(x + drop(W2 gelu(W1 x)))`."""

    def __init__(self, self_attention, hidden_size, intermediate_size, dropout):
        super().__init__()
        output = DenseAndNorm(hidden_size, hidden_size, dropout)
        self.attention = nn.ModuleDict({"self": self_attention, "output": output})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(hidden_size, intermediate_size)})
        self.output = DenseAndNorm(intermediate_size, hidden_size, dropout)

    def forward(self, x):
        x = self.attention["output"](self.attention["self"](x), x)
        return self.output(functional.gelu(self.intermediate["dense"](x), approximate="none"), x)


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
        tables = [(height // downsample, width // downsample)] if encoding.startswith("learned") else []
        kind = {
            "quadratic": QuadraticSelfAttention,
            "quadratic_generalized": GeneralizedQuadraticSelfAttention,
            "learned": LearnedSelfAttention,
            "learned_content": LearnedContentSelfAttention,
        }[encoding]
        self.downsample = downsample
        self.features_upscale = nn.Linear(downsample * downsample * channels, hidden_size)
        layers = [
            Layer(kind(hidden_size, heads, dropout, *tables), hidden_size, intermediate_size, dropout)
            for heads in ([num_heads] * num_layers if isinstance(num_heads, int) else num_heads)
        ]
        self.encoder = nn.ModuleDict({"layer": nn.Sequential(*layers)})
        self.classifier = nn.Linear(hidden_size, num_classes)

    def forward(self, images):
        """Normalised images `(b, H, W, C)` to logits `(b, classes)`, of the mean over pixels."""
        x = self.encoder["layer"](self.features_upscale(space_to_depth(images, self.downsample)))
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
            convolution = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(channels))

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-10, -18 or -34 for CIFAR: 3x3 stem with stride 1, no max-pool, stages of `width` to `8 width` channels.

    The mean over all pixels that are left is the 4x4 average pool for 32x32 images.
    """

    BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}

    def __init__(self, depth=18, num_classes=10, image_channels=3, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(image_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        channels = width
        for stage, count in enumerate(self.BLOCKS[depth]):
            before, channels = channels, width * 2**stage
            others = [BasicBlock(channels, channels, 1) for _ in range(count - 1)]
            blocks = nn.Sequential(BasicBlock(before, channels, 2 if stage else 1), *others)
            setattr(self, f"layer{stage + 1}", blocks)
        self.linear = nn.Linear(8 * width, num_classes)

    def forward(self, images):
        """Normalised images `(b, H, W, C)` to logits `(b, classes)`."""
        x = functional.relu(self.bn1(self.conv1(images.permute(0, 3, 1, 2))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(x.mean(dim=(2, 3)))


def sgd_with_warmup(model, learning_rate, weight_decay, total_steps, warmup_steps):
    """SGD as in the paper, and its learning rate at step `t` (from 0), which the caller sets before each step.

    Momentum 0.9, not Nesterov: `m = 0.9 m + gradient + weight_decay * parameter`, `parameter -= rate * m`. No weight
    decay on centres and spreads.
    """
    decayed, not_decayed = [], []
    for name, parameter in model.named_parameters():
        is_position = name.endswith(("attention_centers", "attention_spreads"))
        (not_decayed if is_position else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": not_decayed, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=False)
    return optimizer, lambda step: warmup_and_cosine(step, learning_rate, total_steps, warmup_steps)


def warmup_and_cosine(step, learning_rate, total_steps, warmup_steps):
    """The learning rate of a step (from 0): a linear rise from 0, then half a cosine down to 0."""
    if step < warmup_steps:
        return learning_rate * step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
