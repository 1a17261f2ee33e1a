"""Table 1 "SA, quadratic" and figures 2 to 4: nine heads, isotropic quadratic encoding.

93.8% in the paper; 12,086,844 parameters, 300 epochs. CIFAR-100: add `--config.dataset.name=cifar100`.

    python train.py --config=configs/quadratic.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    return attention_config()
