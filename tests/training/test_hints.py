"""Hints that a run prints while it trains: when, and what they advise."""

import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.training.hints import long_run, not_learning


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


def test_two_classes_have_another_chance():
    config = attention_config(num_classes=2)
    assert not_learning(config, 200, 50, 2000, 0.52)
    assert not not_learning(config, 200, 50, 2000, 0.55)
