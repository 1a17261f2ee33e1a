"""Table 1 in miniature: the networks of the paper, small, trained alike on CIFAR-10, on two CPU cores.

32 channels, three layers and 8x8 pixels of attention in the place of 400, six and 16x16; SGD, its schedule and the
augmentation are the paper's, without dropout. `resnet` does as much arithmetic as `quadratic`. The network is the name
after the colon, `quadratic` without one; with `_16x16` after it, attention is over 16x16 pixels.

    python train.py --config=configs/miniature.py:quadratic
    python train.py --config=configs/miniature.py:resnet_16x16
"""

from attn_cnn_jax.config import attention_config, resnet_config
from attn_cnn_jax.errors import UserError

NETWORKS = {
    "quadratic": {"encoding": "quadratic"},
    "quadratic_generalized": {"encoding": "quadratic_generalized"},
    "many_heads": {"encoding": "quadratic", "num_heads": 16},
    "learned_rel": {"encoding": "learned"},
    "learned_rel_content": {"encoding": "learned", "content": True},
    "absolute": {"encoding": "absolute_learned"},
    "resnet": {"depth": 10},
}
WIDTH = 10  # of the ResNet: it does as much arithmetic as quadratic attention
WIDTH_16X16 = 17  # the same, where attention averages by rows and columns


def get_config(network="quadratic"):
    name = network.removesuffix("_16x16")
    larger = name != network
    if name not in NETWORKS:
        allowed = f"{', '.join(NETWORKS)}, also with _16x16"
        raise UserError(f"configs/miniature.py:{network}: allowed after the colon are {allowed}")
    if name == "resnet":
        config = resnet_config(width=WIDTH_16X16 if larger else WIDTH, **NETWORKS[name])
    else:
        config = attention_config(
            hidden_size=32,
            intermediate_size=64,
            num_layers=3,
            downsample=2 if larger else 4,
            dropout=0.0,
            attention_dropout=0.0,
            **NETWORKS[name],
        )
    config.train.update({"num_epochs": 4, "log_every_steps": 100, "logger": "none"})
    config.checkpoint.keep_last = 4  # a checkpoint per epoch: the course of all encodings can be looked at
    return config
