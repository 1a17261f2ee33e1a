"""Classified images per second: ours beside the same network in PyTorch, computed as the authors' release does.

    python -m benchmarks.inference [--encodings quadratic learned] [--image_sizes 32 64] [--batch_size 100] [--compile]

A batch of normalised images to logits, no dropout. Ours is the network merged for inference (models/merging.py), as
one compiled program; PyTorch runs under `torch.inference_mode`. Measured as benchmarks/train_step.py says.
"""

import sys

from attn_cnn_jax.errors import exits_with_messages
from benchmarks.comparison import documented_parser, run


@exits_with_messages
def main(argv: list[str] | None = None) -> int:
    run("inference", "inference", documented_parser(__doc__, batch_size=100).parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
