"""Figure 14: sixteen heads, isotropic quadratic encoding.

18,806,970 parameters, 300 epochs. CIFAR-100: add `--config.dataset.name=cifar100`.

    python train.py --config=configs/many_heads.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    return attention_config(num_heads=16)
