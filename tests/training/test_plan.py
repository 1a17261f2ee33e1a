"""What is due when in a run, against loops over its steps; what a record says of its steps."""

import jax
import numpy as np
import pytest

from attn_cnn_jax.config import attention_config, resnet_config
from attn_cnn_jax.data.sources import Split
from attn_cnn_jax.training.feed import OnDevice
from attn_cnn_jax.training.loop import EMPTY, SECONDS_PER_DISPATCH, record_training, steps_ahead
from attn_cnn_jax.training.mesh import data_mesh
from attn_cnn_jax.training.plan import Plan
from attn_cnn_jax.training.reporter import SilentReporter
from attn_cnn_jax.training.step import MAX_STEPS_PER_DISPATCH


def plan(config=None, *, num_pictures=70, batch_size=10, num_epochs=4, log_every_steps=3, eval_every_epochs=1):
    """A plan with what its arithmetic needs: by default 4 epochs of 7 steps."""
    config = attention_config() if config is None else config
    config.train.update({"batch_size": batch_size, "num_epochs": num_epochs, "log_every_steps": log_every_steps})
    config.train.eval_every_epochs = eval_every_epochs
    pictures = Split(np.zeros((num_pictures, 1, 1, 1), np.uint8), np.zeros(num_pictures, np.int32))
    rest = dict.fromkeys(set(Plan._fields) - {"config", "feed", "eval_sets", "schedule", "mesh"})
    mesh = data_mesh(jax.devices()[:1])
    sets = {"validation": pictures, "test": pictures}
    feed = OnDevice(pictures, mesh)
    return Plan(config=config, feed=feed, eval_sets=sets, schedule=lambda step: 0.5**step, mesh=mesh, **rest)


@pytest.mark.parametrize(
    ("every", "epochs"), [(0, []), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (5, [5]), (9, [5])]
)
def test_what_is_due_every_few_epochs_is_due_after_the_last_too(every, epochs):
    five = plan(num_epochs=5)
    assert [epoch for epoch in range(1, 6) if five.due(epoch, every)] == epochs


@pytest.mark.parametrize("log_every_steps", [1, 3, 7, 10, 100])
@pytest.mark.parametrize("eval_every_epochs", [1, 3])
def test_records_up_to_every_step(log_every_steps, eval_every_epochs):
    run = plan(log_every_steps=log_every_steps, eval_every_epochs=eval_every_epochs)
    records = []
    for step in range(1, 29):
        if step % log_every_steps == 0 or step == 28:
            records.append((step, "train"))
        if step % 7 == 0 and (step // 7 % eval_every_epochs == 0 or step == 28):
            records += [(step, "validation"), (step, "test")]
        assert sorted(run.records(step)) == sorted(records)


@pytest.mark.parametrize("log_every_steps", [1, 3, 7, 10, 100])
def test_a_dispatch_ends_with_a_record_and_with_an_epoch(log_every_steps):
    """An epoch has an order of its own, which a dispatch computes once; what is recorded has to be there."""
    run, step, ends = plan(log_every_steps=log_every_steps), 0, []
    while step < 28:
        step += steps_ahead(run, step, seconds_per_step=1e-9)
        ends.append(step)
    assert ends == [step for step in range(1, 29) if step % log_every_steps == 0 or step % 7 == 0]


def test_a_dispatch_takes_half_a_second_but_at_least_one_step():
    run = plan(num_pictures=100_000, log_every_steps=10_000)
    assert steps_ahead(run, 0, SECONDS_PER_DISPATCH / 20) == 20
    assert steps_ahead(run, 0, 100.0) == 1
    assert steps_ahead(run, 0, 1e-9) == MAX_STEPS_PER_DISPATCH
    assert steps_ahead(plan(resnet_config(), num_pictures=100_000, log_every_steps=10_000), 0, 1e-9) == 1


class Recorder(SilentReporter):
    """Keeps the last record."""

    def record(self, record):
        self.found = record


def test_a_record_has_the_means_of_its_steps_and_the_rate_of_the_last():
    results = {"loss": np.array([1.0, 2.0, 9.0]), "accuracy": np.array([0.0, 0.5, 9.0])}
    resumed = EMPTY.extended(results, 1, 5.0)._replace(seconds=0.0, timed_steps=0)  # by a process before this one
    window = resumed.extended(results, 2, 0.25).extended(results, 1, 0.25)
    recorder = Recorder()
    record_training(plan(), recorder, 8, window)
    # The first step has the schedule's rate of 0.
    rates = {"learning_rate": 0.5**7, "images_per_second": 3 * 10 / 0.5}
    assert recorder.found == {"step": 8, "epoch": 8 / 7, "split": "train", "loss": 1.25, "accuracy": 0.125} | rates
