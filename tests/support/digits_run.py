"""A small run on digits, for tests of what a run leaves and of how it goes on."""

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.runs import checkpoints, directory
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training.optimizer import create_optimizer
from attn_cnn_jax.training.step import initial_state

BATCH_SIZE, STEPS_PER_EPOCH = 94, 1442 // 94  # which two of eight devices share


def digits_config(data_dir):
    """One layer of four heads, three epochs."""
    config = attention_config(
        image_shape=(8, 8, 1), hidden_size=16, intermediate_size=8, num_layers=1, num_heads=4, attention_dropout=0.0
    )
    config.dataset.update({"name": "digits", "data_dir": str(data_dir)})
    config.augment.update({"crop_padding": 1, "crop_fraction": 0.75, "flip": False})
    config.train.update({"batch_size": BATCH_SIZE, "num_epochs": 3, "log_every_steps": 10, "logger": "none"})
    return config


def write_run(workdir, config, network):
    """A finished run with this network, as training leaves it; without the training."""
    _, state = initial_state(network, create_optimizer(config.optimizer, lambda step: 0.1))
    workdir.mkdir(exist_ok=True)
    directory.claim(workdir, config)
    with checkpoints.saving(workdir, config) as manager:
        checkpoints.save(manager, 6, state, config, {})
    return workdir


def records_of(workdir):
    """The records of metrics.jsonl without what measures time."""
    records = read_metrics(workdir / "metrics.jsonl")
    return [{key: each[key] for key in each if key not in ("images_per_second", "input_wait")} for each in records]
