"""A small quadratic network on CIFAR-10 whose attention works on 16x16 pixels, as in the paper: good to look at.

python train.py --config=configs/cifar10_maps16.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    config = attention_config(
        hidden_size=64, intermediate_size=128, num_layers=3, downsample=2, dropout=0.0, attention_dropout=0.0
    )
    config.optimizer.update({"name": "muon", "learning_rate": 0.004})
    config.train.update({"batch_size": 50, "num_epochs": 4, "log_every_steps": 200})
    return config
