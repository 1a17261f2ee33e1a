"""Table 1 "ResNet-18" and figure 2: the baseline of the paper.

93.8% in the paper; 11,173,962 parameters, 300 epochs, learning rate divided by ten at epochs 80, 150 and 250.
CIFAR-100: add `--config.dataset.name=cifar100`. Other depths: `--config.model.depth=10` and `34`.

    python train.py --config=configs/resnet18.py
"""

from attn_cnn_jax.config import resnet_config


def get_config():
    config = resnet_config(depth=18)
    config.optimizer.schedule = "step"
    config.optimizer.warmup_fraction = 0.0
    return config
