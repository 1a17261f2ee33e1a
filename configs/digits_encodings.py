"""Every encoding on scikit-learn's 8x8 digits: the network of digits.py, trained on scans alone.

With SGD, at the learning rate 0.05 that suits `quadratic`, `relative` and the absolute encodings stay at chance (9 to
13%). The encoding is the name after the colon, `relative` without one; `content` attends without positions.

    python train.py --config=configs/digits_encodings.py:relative
    python train.py --config=configs/digits_encodings.py:absolute_sinusoidal
"""

from attn_cnn_jax.config import attention_config


def get_config(encoding="relative"):
    config = attention_config(image_shape=(8, 8, 1), hidden_size=64, intermediate_size=128, num_layers=3, downsample=1)
    config.model.update({"dropout": 0.0, "attention_dropout": 0.0, "encoding": encoding})
    config.dataset.name = "digits"
    config.augment.update({"crop_padding": 1, "flip": False})
    config.optimizer.update({"name": "muon", "learning_rate": 0.01})
    config.train.update({"batch_size": 25, "num_epochs": 12, "log_every_steps": 57})
    return config
