"""Figure 13: the network of figure 12 without its degenerate heads, trained for 100 more epochs at rate 0.01.

Starts from a finished run of configs/quadratic_generalized.py, or from `--config.start.run=DIR`. Removes heads whose
attention is uniform or a line; `--config.start.prune=False --config.start.reset=True` resets them instead.

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
