"""Figure 13: the network of figure 12 without its degenerate heads, trained on.

Starts from a finished run of configs/quadratic_generalized.py (another one: `--config.start.run=DIR`),
removes heads whose attention is uniform or a line, and trains on for 100 epochs at rate 0.01. To start
these heads again instead: `--config.start.prune=False --config.start.reset=True`.

    python train.py --config=configs/quadratic_generalized_pruned.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    config = attention_config(encoding="quadratic_generalized")
    config.start.run = "runs/quadratic_generalized"
    config.start.prune = True
    config.optimizer.learning_rate = 0.01
    config.train.num_epochs = 100
    return config
