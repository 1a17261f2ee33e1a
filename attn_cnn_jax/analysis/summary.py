"""Parameters and floating-point operations (FLOPs) of networks, beside the paper's Table 1.

    python -m attn_cnn_jax.analysis.summary [CONFIG ...]

Without arguments: the four networks of Table 1, then the other files of configs/ where there are any. One
multiply-add is two FLOPs, and a count is of one picture on its own. The paper counts the linear maps of
attention networks, the convolutions and the linear map of the ResNet, and no more. The full count adds applying
the attention probabilities to the values, the content scores, and the position scores that are matrix products.
Elementwise work (softmax, norms, GELU; about a percent) is in neither, nor is what a kernel saves: attention
counts as the dense kernel's, and a convolution multiplies its padding too.
Exit status: 0 done, 1 with a message on standard error, 2 for bad flags.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import NamedTuple

import jax
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.cli import train as command
from attn_cnn_jax.config import attention_config, complete, create_model, resnet_config
from attn_cnn_jax.config.network import encoding_of, encoding_options, grid, head_size, heads_by_layer, sizes
from attn_cnn_jax.errors import says_errors
from attn_cnn_jax.models.encodings.content import content_multiply_adds
from attn_cnn_jax.models.resnet import BLOCKS, CHANNELS


class Published(NamedTuple):
    """A row of the paper's Table 1."""

    config: ConfigDict
    parameters: str
    flops: str


TABLE_1 = {
    "resnet18": Published(resnet_config(depth=18), "11.2M", "1.1B"),
    "quadratic": Published(attention_config(), "12.1M", "6.2B"),
    "learned_rel": Published(attention_config(encoding="learned"), "12.3M", "6.2B"),
    "learned_rel_content": Published(attention_config(encoding="learned", content=True), "29.5M", "15B"),
}
UNITS = ("", "k", "M", "B", "T")
CHECKOUT = Path(__file__).parents[2]
HEADER = ("config", "parameters", "paper", "FLOPs: linear maps", "paper", "FLOPs: full count")


class Flops(NamedTuple):
    """FLOPs of one picture.

    Attributes:
      linear: linear maps and convolutions, all that the paper counts.
      attention: probabilities times values, and content scores.
      positions: position scores, as far as they are matrix products.
    """

    linear: int
    attention: int = 0
    positions: int = 0

    @property
    def full(self) -> int:
        return sum(self)


def count_parameters(model: ConfigDict) -> int:
    """Trainable numbers of the network that `config.model` describes; allocates none of them."""
    network = nnx.eval_shape(lambda: create_model(model, rngs=nnx.Rngs(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(network, nnx.Param)))


def count_flops(model: ConfigDict) -> Flops:
    """FLOPs of one picture through the network that `config.model` describes."""
    return resnet_flops(model) if model.name == "resnet" else attention_network_flops(model)


def attention_network_flops(model: ConfigDict) -> Flops:
    """FLOPs of one picture through an attention network with the dense implementation."""
    height, width = grid(model)
    pixels, hidden = height * width, model.hidden_size
    layers = [layer_multiply_adds(model, heads) for heads in heads_by_layer(model)]
    linear, attention, positions = (sum(part) for part in zip(*layers, strict=True))
    linear += pixels * model.image_shape[2] * model.downsample**2 * hidden + hidden * model.num_classes
    return Flops(2 * linear, 2 * attention, 2 * positions)


def layer_multiply_adds(model: ConfigDict, heads: int) -> tuple[int, int, int]:
    """Multiply-adds of one block, in the three parts of `Flops`."""
    height, width = grid(model)
    pixels, hidden, size = height * width, model.hidden_size, head_size(model)
    merged = size >= hidden  # one map W_val W_out per head
    value = heads * (hidden if merged else 2 * size) * hidden
    scores = [encoding_of(model).multiply_adds(sizes(model, heads), encoding_options(model))]
    scores += [content_multiply_adds(grid(model), hidden, size)] if model.content else []
    maps, content, positions = (sum(part) for part in zip(*scores, strict=True))
    linear = pixels * (value + heads * maps + hidden**2 + 2 * hidden * model.intermediate_size)
    averages = pixels**2 * (hidden if merged else size)
    return linear, heads * (averages + content), heads * positions


def resnet_flops(model: ConfigDict) -> Flops:
    """FLOPs of one picture through a ResNet: convolutions, padding included, and the linear map."""
    height, width, features = model.image_shape
    total = height * width * 9 * features * CHANNELS[0]
    features = CHANNELS[0]
    for stage, (count, channels) in enumerate(zip(BLOCKS[model.depth], CHANNELS, strict=True)):
        for n in range(count):
            stride = 2 if stage > 0 and n == 0 else 1
            height, width = -(-height // stride), -(-width // stride)
            shortcut = features * channels if stride != 1 or features != channels else 0
            total += height * width * (9 * features * channels + 9 * channels**2 + shortcut)
            features = channels
    return Flops(2 * (total + features * model.num_classes))


def short(count: int) -> str:
    """A count to three significant digits, in the paper's manner: `short(6_176_000_000)` is `6.18B`."""
    rounded = float(f"{count:.2e}")  # before choosing the unit: 999,999 is 1.00M
    power = min(int(math.log10(max(rounded, 1))) // 3, len(UNITS) - 1)
    return f"{rounded / 1000**power:#.3g}".rstrip(".") + UNITS[power]


def row(name: str, config: ConfigDict) -> tuple[str, ...]:
    """A line of the table; the paper's columns are filled where the network is one of Table 1."""
    model = complete(config).model
    # As dictionaries: a ConfigDict that is locked equals none that is not.
    published = next((known for known in TABLE_1.values() if known.config.model.to_dict() == model.to_dict()), None)
    flops = count_flops(model)
    return (
        name,
        f"{count_parameters(model):,}",
        published.parameters if published else "",
        short(flops.linear),
        published.flops if published else "",
        short(flops.full),
    )


def load_config(path: str) -> ConfigDict:
    """The configuration of a file, as train.py reads it."""
    return command.parse(["summary", f"--config={path}"]).config


def default_configs() -> dict[str, ConfigDict]:
    """Table 1, then the other configuration files where the package lies in a checkout."""
    others = sorted((CHECKOUT / "configs").glob("*.py")) if (CHECKOUT / "train.py").is_file() else []
    table = {name: published.config for name, published in TABLE_1.items()}
    return table | {path.stem: load_config(str(path)) for path in others if path.stem not in table}


def render(rows: list[tuple[str, ...]]) -> str:
    """Rows under the header in aligned columns, the first to the left, numbers to the right."""
    rows = [HEADER, *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *numbers in rows:
        lines.append("  ".join([first.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]))
    return "\n".join(lines)


@says_errors
def main(argv: list[str] | None = None) -> int:
    """Runs the command with the given arguments (default: those of the process); returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m attn_cnn_jax.analysis.summary",
        description="Parameters and FLOPs a picture of networks, beside the paper's Table 1.",
    )
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="configuration file, such as configs/quadratic.py")
    try:
        paths = parser.parse_args(argv).configs
    except SystemExit as stop:  # argparse has printed its message
        return stop.code
    configs = [(path, load_config(path)) for path in paths] if paths else default_configs().items()
    print(render([row(name, config) for name, config in configs]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
