"""Plain PyTorch trains as the configuration says."""

import numpy as np
import pytest

from attn_cnn_jax.config import complete
from attn_cnn_jax.data.sets import Dataset, Split
from attn_cnn_jax.training.optimizer import learning_rate
from benchmarks import fifteen_minutes
from benchmarks.networks import SPEC

pytestmark = pytest.mark.torch


def test_the_learning_rate_is_ours():
    from benchmarks import train_pytorch

    config = fifteen_minutes.configured("attention", 0).optimizer
    ours = learning_rate(config, 4, 25)
    warmup = round(config.warmup_fraction * 100)
    theirs = [train_pytorch.warmup_and_cosine(step, 0.004, 100, warmup) for step in range(100)]
    np.testing.assert_allclose([float(ours(step)) for step in range(100)], theirs, atol=1e-8)


def test_images_are_windows_of_padded_ones_half_of_them_mirrored():
    from benchmarks import train_pytorch

    images = np.random.default_rng(0).integers(1, 256, (400, 6, 5, 3), dtype=np.uint8)
    found = train_pytorch.augmented(images, 2, np.random.default_rng(1))
    padded, mirrored, places = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0))), [], set()
    for n, image in enumerate(found):
        windows = {
            (i, j, s): padded[n, i : i + 6, j : j + 5][:, ::s] for i in range(5) for j in range(5) for s in (1, -1)
        }
        ((row, column, step),) = (at for at, window in windows.items() if np.array_equal(window, image))
        mirrored.append(step == -1)
        places.add((row, column))
    assert 0.4 < np.mean(mirrored) < 0.6
    assert len(places) == 25


def test_it_learns_what_is_easy():
    from benchmarks import train_pytorch

    config = fifteen_minutes.configured("pytorch", 0)
    config.model.update({"num_layers": 1, "hidden_size": 16, "intermediate_size": 16})
    config.optimizer.learning_rate = 0.02
    config.train.update({"batch_size": 10, "num_epochs": 3})
    labels = np.arange(60, dtype=np.int32) % 2
    split = Split((labels[:, None, None, None] * 200 * np.ones((1, 32, 32, 3))).astype(np.uint8), labels)
    records = list(train_pytorch.train(complete(config), Dataset(split, split, SPEC)))
    assert [(record["split"], record["step"]) for record in records] == [
        (name, step) for step in (6, 12, 18) for name in ("train", "test")
    ]
    assert records[-1]["accuracy"] == 1
