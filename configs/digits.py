"""A first result on a laptop: a small quadratic network on scikit-learn's 8x8 digits, without a download.

97.2% test accuracy, the median of seeds 0 to 4 (96.9 to 98.0%); about a minute on 2 CPU cores.

    make train
    python train.py --config=configs/digits.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    config = attention_config(image_shape=(8, 8, 1), hidden_size=64, intermediate_size=128, num_layers=3, downsample=1)
    config.model.update({"dropout": 0.0, "attention_dropout": 0.0})
    config.dataset.name = "digits"
    config.augment.update({"crop_padding": 1, "flip": False})
    config.optimizer.learning_rate = 0.05
    config.train.update({"batch_size": 25, "num_epochs": 35, "log_every_steps": 57})
    config.checkpoint.every_epochs = 5
    return config
