"""Training images per second: ours beside the same network in PyTorch, computed as the authors' release does.

    python -m benchmarks.train_step [--encodings quadratic learned] [--image_sizes 32 64] [--batch_size 20] [--compile]

PyTorch eager, with --compile also under torch.compile. A row's contenders are timed turn by turn in one process;
numbers are medians, ratios the medians of the turns' ratios. Peak memory is that of each contender in a process of its
own. Ours augments and normalises its images in the step, PyTorch has them ready. Without PyTorch
(`pip install -e ".[torch]"`) ours is measured alone.
"""

import sys

from attn_cnn_jax.errors import exits_with_messages
from benchmarks.comparison import documented_parser, run

DROPOUT = {
    "paper": {},
    "factors": {"attention_dropout_on": "factors"},  # of ours; PyTorch's network drops single probabilities
    "outside": {"attention_dropout": 0.0},  # of attention: attention of positions then stays a product
    "none": {"attention_dropout": 0.0, "dropout": 0.0},
}


@exits_with_messages
def main(argv: list[str] | None = None) -> int:
    parser = documented_parser(__doc__, batch_size=20)
    what = "the paper's, of row and column factors instead of probabilities, outside of attention, none"
    parser.add_argument("--dropout", nargs="+", choices=DROPOUT, default=["paper"], help=what)
    options = parser.parse_args(argv)
    run("train_step", "training", options, [({"dropout": name}, DROPOUT[name]) for name in options.dropout])
    return 0


if __name__ == "__main__":
    sys.exit(main())
