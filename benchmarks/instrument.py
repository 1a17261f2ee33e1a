"""CPU seconds and memory of the instrument beside the network's own forward pass, in turns.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m benchmarks.instrument [--network=small] [--turns=3]

A vision transformer with random weights (needs PyTorch; nothing is downloaded): of ViT-S/14's size at 224 pixels, or
of ViT-B/14's at 518. Each turn is a process: the forward pass, `inspect`, and `inspect` with `replaced`. CPU seconds
are without imports and without the making of the network; memory is the peak of the process.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from attn_cnn_jax.errors import exits_with_messages
from attn_cnn_jax.output import table
from benchmarks.measure import alone, peak_bytes

NETWORKS = {"small": (384, 6, 224, 8), "base": (768, 12, 518, 4)}  # channels, heads, pixels, images
STAGES = ("forward", "inspect", "replaced")


def stage(name: str, network: str) -> tuple[float, float]:
    """CPU seconds and peak memory in GiB of one stage in this process."""
    import torch

    import attn_cnn_jax
    from benchmarks import dinov2

    torch.manual_seed(0)
    torch.set_num_threads(1)
    channels, heads, pixels, count = NETWORKS[network]
    model, images = dinov2.create(channels, heads), torch.randn(count, 3, pixels, pixels)

    def forward() -> None:
        with torch.inference_mode():
            model(images)

    stages: dict[str, Callable] = {
        "forward": forward,
        "inspect": lambda: str(attn_cnn_jax.inspect(model, images)),
        "replaced": lambda: attn_cnn_jax.inspect(model, images).replaced,
    }
    attn_cnn_jax.inspect(dinov2.create(24, 3, 1), images[:1, :, :28, :28], kernel_size=1)  # imports
    started = time.process_time()
    stages[name]()
    return time.process_time() - started, peak_bytes() / 2**30


def measure(network: str, turns: int) -> str:
    """Runs the stages in turns; returns a table of medians."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in STAGES}
    for turn in range(turns):
        for name in STAGES:
            found[name].append(alone(stage, name, network))
            print(f"turn {turn + 1} of {turns}: {name} {found[name][-1][0]:.1f} s", file=sys.stderr, flush=True)
    seconds = {name: statistics.median(row[0] for row in rows) for name, rows in found.items()}
    memory = {name: max(row[1] for row in rows) for name, rows in found.items()}
    rows = [
        [name, f"{seconds[name]:.1f}", f"{seconds[name] / seconds['forward']:.1f}", f"{memory[name]:.2f}"]
        for name in STAGES
    ]
    return table(rows, ["", "CPU s", "of forward", "peak GiB"])


@exits_with_messages
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=tuple(NETWORKS), default="small")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args(argv)
    print(measure(options.network, options.turns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
