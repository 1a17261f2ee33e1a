"""`python -m attn_cnn_jax SUBCOMMAND ...`: the command `attn-cnn` where the package is not installed."""

import sys

from attn_cnn_jax.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
