"""Table 1 "SA, learned + content" and figures 6 to 10: learned 2-D relative encoding with content.

87.1% in the paper; 29,601,882 parameters, 300 epochs. CIFAR-100: add `--config.dataset.name=cifar100`.

    python train.py --config=configs/learned_rel_content.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    return attention_config(encoding="learned", content=True)
