"""Hints that a run prints while it trains: when, and what they advise."""

import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.training.hints import long_run, not_learning, not_read, periods


def test_a_run_of_more_than_a_day_says_so():
    assert long_run(86_399, "cpu") == ""
    said = long_run(3_700 * 3600, "cpu")
    assert said == "about 3,700 hours at this rate: use a GPU, or a smaller network such as --config=cifar10_cpu"
    assert "cifar10_cpu" not in long_run(3_700 * 3600, "gpu")


@pytest.mark.parametrize(
    ("step", "num_steps", "total_steps", "accuracy", "says"),
    [
        (200, 50, 2000, 0.103, True),
        (250, 50, 2000, 0.103, False),  # said already
        (150, 50, 2000, 0.103, False),  # too early
        (200, 50, 2000, 0.15, False),  # it learns
        (40, 10, 400, 0.103, False),  # a short run: too early too
        (100, 10, 400, 0.103, True),
    ],
)
def test_a_network_at_chance_after_a_tenth_of_the_run(step, num_steps, total_steps, accuracy, says):
    config = attention_config()
    said = not_learning(config, step, num_steps, total_steps, accuracy)
    assert bool(said) == says
    if says:
        assert f"training accuracy is {accuracy:.1%}, and chance 10.0%" in said
        assert "config.optimizer.name=adam" in said
    config.optimizer.name = "adam"
    assert "adam" not in not_learning(config, step, num_steps, total_steps, accuracy)


def test_values_without_effect_are_said():
    config = attention_config()
    assert not_read(config) == []
    config.optimizer.update({"name": "adam", "schedule": "step"})
    config.train.num_epochs = 251  # the last boundary is 250
    assert not_read(config) == []
    config.optimizer.momentum, config.train.num_epochs = 0.5, 150
    config.start.update({"run": "first", "whiten": True})
    momentum, boundaries, whiten = not_read(config)
    assert momentum == "config.optimizer.momentum=0.5 has no effect: adam has decay rates of its own, 0.9 and 0.999"
    assert boundaries.startswith("config.optimizer.boundaries: 150, 250 have no effect: the run ends after epoch 150")
    assert whiten.startswith("config.start.whiten=True has no effect")
    config.optimizer.update({"name": "muon", "schedule": "cosine"})
    assert not_read(config) == [whiten]


def test_periods_that_divide_each_other_need_no_hint():
    config = attention_config()
    config.dataset.num_validation = 100
    for every, kept, evaluated in ((1, 0, 1), (1, 3, 1), (4, 0, 2), (4, 8, 4)):
        config.checkpoint.update({"every_epochs": every, "keep_every_epochs": kept})
        config.train.eval_every_epochs = evaluated
        assert periods(config) == []
    config.train.eval_every_epochs = 3
    assert len(periods(config)) == 1
    config.dataset.num_validation = 0
    assert periods(config) == []


def test_two_classes_have_another_chance():
    config = attention_config(num_classes=2)
    assert not_learning(config, 200, 50, 2000, 0.52)
    assert not not_learning(config, 200, 50, 2000, 0.55)
