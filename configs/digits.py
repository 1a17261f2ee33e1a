"""A first result on a laptop: a small quadratic network on scikit-learn's 8x8 digits, no download.

PLACEHOLDER

    python train.py --config=configs/digits.py
"""

from attn_cnn_jax.config import attention_config


def get_config():
    config = attention_config(
        image_shape=(8, 8, 1),
        hidden_size=64,
        intermediate_size=128,
        num_layers=3,
        downsample=1,
        attention_dropout=0.0,
    )
    config.dataset.name = "digits"
    config.augment = {"crop_padding": 1, "flip": False}
    config.train.batch_size = 50
    config.train.num_epochs = 40
    config.train.log_every_steps = 28
    config.checkpoint.every_epochs = 5
    return config
