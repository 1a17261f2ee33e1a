"""A small quadratic network for images of one's own, from a hundred on: a folder of class folders.

The network is that of cifar10_cpu.py, so that it can start from its trained weights. Batch size and number of epochs
fit the number of images; sides are taken to matter.

    python train.py --config=configs/own_images.py --config.dataset.path=images
    python train.py --config=configs/own_images.py --config.dataset.path=images --config.start.run=pretrained:cifar10
"""

from attn_cnn_jax.config import attention_config


def get_config():
    config = attention_config(
        hidden_size=144, intermediate_size=288, num_layers=4, downsample=4, dropout=0.0, attention_dropout=0.0
    )
    config.model.update({"head_size": 16, "init": "grid", "block": "pre_norm"})
    config.dataset.update({"name": "folder", "image_size": 32})
    config.augment.update({"crop_padding": 2, "flip": False})  # see docs/own_images.md
    config.optimizer.update({"name": "muon", "learning_rate": 0.004, "weight_decay": 0.0})
    config.train.update({"batch_size": 0, "num_epochs": 0, "label_smoothing": 0.1, "eval_every_epochs": 5})
    config.checkpoint.every_epochs = 5
    return config
