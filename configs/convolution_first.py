"""Convolution first: a ResNet, converted by Theorem 1 and trained on as attention.

The first command trains a ResNet-10 of 8 channels. The second takes it from `--config.start.run`, makes one
self-attention layer of every convolution, a head per shift of its kernel, and goes on at a tenth of its learning rate;
heads may leave their shifts then. Attention reads maps as large as the images, so an epoch takes many times as long.

    python train.py --config=configs/convolution_first.py:convolution --workdir=runs/convolution
    python train.py --config=configs/convolution_first.py:attention
"""

from attn_cnn_jax.config import resnet_config
from attn_cnn_jax.errors import UserError

NETWORKS = ("convolution", "attention")


def get_config(network="attention"):
    if network not in NETWORKS:
        raise UserError(f"configs/convolution_first.py:{network}: allowed after the colon are {', '.join(NETWORKS)}")
    config = resnet_config(depth=10, width=8)
    config.optimizer.update({"name": "muon", "learning_rate": 0.04, "weight_decay": 0.0, "warmup_fraction": 0.2})
    config.train.update({"batch_size": 50, "num_epochs": 4, "log_every_steps": 100})
    if network == "attention":
        config.model.layers = "attention"
        config.start.run = "runs/convolution"
        config.optimizer.learning_rate = 0.004
        config.train.num_epochs = 1
    return config
