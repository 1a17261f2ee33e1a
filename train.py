"""Trains a network: `python train.py --config=configs/digits.py [--workdir=DIR] [--config.train.num_epochs=2 ...]`.

The same command on the same run directory goes on where it stopped. Exit status: 0 trained, 1 something
to put right (said in a line or two), 2 bad flags, 128 + signal where stopped by one, state saved.
"""

import sys

from attn_cnn_jax.cli.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
