"""Table 1 "SA, learned" and figure 5: learned 2-D relative encoding without content.

91.8% in the paper; 12,278,682 parameters, 300 epochs. CIFAR-100: add `--config.dataset.name=cifar100`.

    python train.py --config=configs/learned_rel.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    return attention_config(encoding="learned")
