"""Figure 12: generalised quadratic encoding, whose heads attend to Gaussians of any shape.

12,087,006 parameters, 300 epochs. CIFAR-100: add `--config.dataset.name=cifar100`.

    python train.py --config=configs/quadratic_generalized.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    return attention_config(encoding="quadratic_generalized")
