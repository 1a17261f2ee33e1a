"""A wider and deeper quadratic network on CIFAR-10 that trains within three hours on 2 CPU cores.

The recipe of cifar10_cpu.py for six layers of 96 channels.

83.8% test accuracy on CIFAR-10 (JPEG copy), seed 0, after 103 minutes of training; 64.7, 74.7, 78.0, 81.3, 83.2, 83.8%
after every fourth epoch.

    python train.py --config=configs/cifar10_cpu_3h.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    config = attention_config(
        hidden_size=96,
        intermediate_size=192,
        num_layers=6,
        downsample=4,
        dropout=0.0,
        attention_dropout=0.0,
    )
    config.optimizer.update({"name": "muon", "learning_rate": 0.004, "weight_decay": 0.0})
    config.train.update({"batch_size": 50, "num_epochs": 24, "eval_every_epochs": 4, "log_every_steps": 200})
    return config
