"""A wider and deeper quadratic network on CIFAR-10 that trains in three hours on 2 CPU cores.

The recipe is that of cifar10_cpu.py, with an embedding that begins by whitening the patches of training pictures, and
smoothed labels.

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
    config.optimizer.update({"name": "muon", "learning_rate": 0.004})
    config.start.whiten = True
    config.train.update({"batch_size": 50, "num_epochs": 50, "label_smoothing": 0.1, "log_every_steps": 200})
    return config
