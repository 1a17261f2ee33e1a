"""`python -m attn_cnn_jax SUBCOMMAND ...`: the command `attn-cnn` where the package is not installed."""

from attn_cnn_jax.cli.main import run

if __name__ == "__main__":
    run()
