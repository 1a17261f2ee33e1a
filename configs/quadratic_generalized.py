"""Figure 12: generalised quadratic encoding, heads that attend to Gaussians of any shape.

300 epochs; 12,087,006 parameters. CIFAR-100: add `--config.dataset.name=cifar100`.

    python train.py --config=configs/quadratic_generalized.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    return attention_config(encoding="quadratic_generalized")
