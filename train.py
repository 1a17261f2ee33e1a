"""Trains a network: `python train.py --config=configs/digits.py [--workdir=DIR] [--config.train.num_epochs=2 ...]`.

The same as `attn-cnn train`, see attn_cnn_jax/cli/train.py. The same command on the same run directory continues where
it stopped.
"""

from attn_cnn_jax.cli.main import run

if __name__ == "__main__":
    run("train", program="train.py")
