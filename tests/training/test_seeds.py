"""Several seeds in one program: the numbers of each are those of a run of its own, and so is what is kept of it."""

import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import load_run
from attn_cnn_jax.analysis import heads
from attn_cnn_jax.analysis.figures import curves
from attn_cnn_jax.cli import train as command
from attn_cnn_jax.config import attention_config, create_model, resnet_config, validate
from attn_cnn_jax.data.sources import SPECS
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.metrics import last_records, read_metrics
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.runs.seeds import mean_record, pick, seeds_of, stack
from attn_cnn_jax.training import start
from attn_cnn_jax.training.loop import run
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate
from attn_cnn_jax.training.step import Pictures, create_train_steps, data_mesh, initial_state, most_steps, place

SPEC = SPECS["cifar10"]
FIRST, SEEDS = 3, 3
STEPS_PER_EPOCH = 1442 // 96


def small_config(network):
    """With everything that draws random numbers or keeps a state of its own."""
    if network == "resnet":
        config = resnet_config(depth=10, image_shape=(8, 8, 3))
        config.optimizer.learning_rate = 1e-4  # where a network of this size does not blow rounding up
        config.train.batch_size = 32
    else:
        config = attention_config(
            image_shape=(8, 8, 3), hidden_size=16, intermediate_size=16, num_layers=1, num_heads=4, encoding=network
        )
        config.optimizer.learning_rate = 0.05
        config.train.batch_size = 8
    if network == "quadratic_generalized":
        config.optimizer.update({"covariance_penalty": 0.1})
    config.seed = FIRST
    return config


def train(config, num_devices=1, starts=None):
    """Losses of seven steps, across the end of an epoch of five, and the state after them.

    Args:
      starts: seeds of the networks at the start, if not those of the run.
    """
    mesh = data_mesh(jax.devices()[:num_devices])
    count = 5 * config.train.batch_size
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    pictures = place(Pictures(images, generator.integers(0, 10, count).astype(np.int32)), mesh)
    optimizer = create_optimizer(config.optimizer, learning_rate(config.optimizer, 4, 5))
    networks = [create_model(config.model, rngs=nnx.Rngs(seed)) for seed in starts or seeds_of(config)]
    begun = [initial_state(network, optimizer) for network in networks]
    skeleton, state = begun[0][0], place(stack([state for _, state in begun]), mesh)
    train_steps = create_train_steps(config, mesh, skeleton, optimizer, SPEC)
    losses = []
    for steps in (5, 2) if most_steps(config) > 1 else (1,) * 7:
        state, results = train_steps(state, pictures, jnp.int32(steps))
        losses.append(np.asarray(results["loss"])[..., :steps])
    return np.concatenate(losses, axis=-1), jax.device_get(state)


@pytest.mark.parametrize(
    ("network", "at_once", "num_devices"),
    [("quadratic", 2, 8), ("quadratic_generalized", 1, 1), ("resnet", 1, 1)],
)
def test_a_seed_has_the_numbers_of_a_run_of_its_own(network, at_once, num_devices):
    config = small_config(network)
    config.train.update({"num_seeds": 2, "seeds_at_once": at_once})
    losses, state = train(config, num_devices)
    alone = small_config(network)
    alone.seed = FIRST + 1
    own_losses, own_state = train(alone)
    np.testing.assert_allclose(losses[1], own_losses, atol=1e-5, rtol=0)
    ours = pick(config, state, FIRST + 1)
    assert ours.step == own_state.step == 7
    chex.assert_trees_all_close(ours.parameters, own_state.parameters, atol=1e-5, rtol=0)
    chex.assert_trees_all_close(ours.statistics, own_state.statistics, atol=1e-5, rtol=1e-5)
    assert np.abs(losses[0] - losses[1]).max() > 1e-3  # seeds do differ


@pytest.mark.parametrize("same", [True, False])
def test_the_data_order_is_the_first_seeds_or_each_its_own(same):
    """From the same start, without dropout and augmentation, only the order tells seeds apart."""
    config = small_config("quadratic")
    config.model.update({"dropout": 0.0, "attention_dropout": 0.0})
    config.augment.update({"crop_padding": 0, "flip": False})
    config.train.update({"num_seeds": 2, "same_data_order": same})
    losses, _ = train(config, starts=[FIRST, FIRST])
    if same:
        np.testing.assert_array_equal(losses[0], losses[1])
    else:
        assert np.abs(losses[0] - losses[1]).max() > 1e-3


def test_a_mean_record_is_mean_and_standard_deviation_of_a_sample():
    where = {"step": 4, "epoch": 2.0, "split": "test"}
    records = [where | {"seed": n, "loss": loss, "accuracy": loss / 10} for n, loss in enumerate((1.0, 2.0, 6.0))]
    assert mean_record(records) == where | {
        "seeds": 3,
        "loss": 3.0,
        "accuracy": pytest.approx(0.3),
        "loss_std": pytest.approx(7**0.5),  # (4 + 1 + 9) / 2
        "accuracy_std": pytest.approx(7**0.5 / 10),
    }
    assert mean_record(records[:1]) == records[0]


def run_config(data_dir, seed=FIRST, num_seeds=1, **train):
    config = attention_config(
        image_shape=(8, 8, 1), hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4, attention_dropout=0.1
    )
    config.seed = seed
    config.dataset.update({"name": "digits", "data_dir": str(data_dir)})
    config.augment.update({"crop_padding": 1, "flip": False})
    config.train.update(
        {"batch_size": 96, "num_epochs": 2, "log_every_steps": 10, "tensorboard": False, "num_seeds": num_seeds}
    )
    config.train.update(train)
    return config


@pytest.fixture(scope="module")
def finished(data_dir, tmp_path_factory):
    """A run of several seeds, and one of its second seed alone."""
    folder = tmp_path_factory.mktemp("seeds")
    run(run_config(data_dir, num_seeds=SEEDS), folder / "all")
    run(run_config(data_dir, seed=FIRST + 1), folder / "alone")
    return folder


def without_rates(records):
    return [{k: v for k, v in record.items() if k not in ("images_per_second", "seed")} for record in records]


def test_records_of_a_seed_are_those_of_its_own_run(finished):
    records = read_metrics(finished / "all/metrics.jsonl")
    alone = without_rates(read_metrics(finished / "alone/metrics.jsonl"))
    ours = without_rates([record for record in records if record["seed"] == FIRST + 1])
    assert len(records) == SEEDS * len(alone)
    for a, b in zip(ours, alone, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
    last = [r["accuracy"] for r in records if r["split"] == "test" and r["step"] == 2 * STEPS_PER_EPOCH]
    summary = last_records(finished / "all")["test"]
    assert summary["accuracy"] == pytest.approx(np.mean(last))
    assert summary["accuracy_std"] == pytest.approx(np.std(last, ddof=1))


def test_positions_of_a_seed_are_those_of_its_own_run(finished):
    records = read_positions(finished / "all", FIRST + 1)
    alone = read_positions(finished / "alone", FIRST + 1)
    assert [r["step"] for r in records] == [r["step"] for r in alone] == [0, STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    for a, b in zip(records, alone, strict=True):
        np.testing.assert_allclose(a["layers"][0]["centre"], b["layers"][0]["centre"], atol=1e-4)
    assert len(read_positions(finished / "all")) == SEEDS * 3


def test_load_run_gives_the_network_of_a_seed(finished):
    restored, alone = load_run(finished / "all", seed=FIRST + 1), load_run(finished / "alone")
    assert (restored.seed, restored.step, alone.seed) == (FIRST + 1, alone.step, None)
    chex.assert_trees_all_close(split(restored.model)[1], split(alone.model)[1], atol=1e-5)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)
    np.testing.assert_allclose(restored.predict(images), alone.predict(images), atol=1e-5)
    first = load_run(finished / "all")
    assert first.seed == FIRST
    assert np.abs(first.predict(images) - alone.predict(images)).max() > 1e-3
    with pytest.raises(UserError, match=r"seed=6: .* has seeds 3 to 5"):
        load_run(finished / "all", seed=6)
    with pytest.raises(UserError, match=r"seed=3: .* has seed 4 alone"):
        load_run(finished / "alone", seed=3)
    assert load_run(finished / "alone", seed=4).step == alone.step


def test_going_on_with_several_seeds_is_the_uninterrupted_run(finished, data_dir, tmp_path):
    config = run_config(data_dir, num_seeds=SEEDS)
    stops_at = STEPS_PER_EPOCH + 3
    calls = []

    class Killed(Exception):
        pass

    def killed(self, step, *more, **options):
        calls.append(step)
        if step > stops_at:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        from attn_cnn_jax.training.loop import Run

        patch.setattr(Run, "check_finite", killed)
        with pytest.raises(Killed):
            run(config, tmp_path)
    run(config, tmp_path)
    assert [record["step"] for record in read_positions(tmp_path, FIRST)] == [0, STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    ours, reference = (read_metrics(folder / "metrics.jsonl") for folder in (tmp_path, finished / "all"))
    assert [r["seed"] for r in ours] == [r["seed"] for r in reference]
    assert without_rates(ours) == without_rates(reference)
    for seed in seeds_of(config):
        a, b = (split(load_run(folder, seed=seed).model)[1] for folder in (tmp_path, finished / "all"))
        chex.assert_trees_all_equal(a, b)


def test_commands_look_at_one_seed(finished, capsys):
    assert heads.main([str(finished / "all"), f"--seed={FIRST + 1}"]) == 0
    ours = capsys.readouterr().out
    assert heads.main([str(finished / "alone")]) == 0
    assert ours == capsys.readouterr().out
    assert heads.main([str(finished / "all"), "--seed=0"]) == 1
    assert "has seeds 3 to 5" in capsys.readouterr().err


def test_curves_of_several_seeds_are_their_mean_and_a_band(finished):
    figure = curves.draw([finished / "all"])
    accuracy = figure.axes[0]
    (line,) = [line for line in accuracy.lines if line.get_gid() == "0 test"]
    records = [r for r in read_metrics(finished / "all/metrics.jsonl") if r["split"] == "test"]
    found = np.array([r["accuracy"] for r in records]).reshape(2, SEEDS)
    np.testing.assert_allclose(line.get_ydata(), 100 * found.mean(axis=1))
    (band,) = [each for each in accuracy.collections if each.get_gid() == "0 test band"]
    low, high = band.get_datalim(accuracy.transData).intervaly
    mean, std = 100 * found.mean(axis=1), 100 * found.std(axis=1, ddof=1)
    assert (low, high) == pytest.approx(((mean - std).min(), (mean + std).max()))


def test_best_is_the_best_of_each_seed_on_the_validation_split(data_dir, tmp_path):
    config = run_config(data_dir, num_seeds=2, same_data_order=True, num_epochs=3)
    config.dataset.num_validation = 200
    config.checkpoint.keep_last = 1
    run(config, tmp_path)
    records = [r for r in read_metrics(tmp_path / "metrics.jsonl") if r["split"] == "validation"]
    for seed in seeds_of(config):
        accuracy = {r["step"]: r["accuracy"] for r in records if r["seed"] == seed}
        assert accuracy[load_run(tmp_path, step="best", seed=seed).step] == max(accuracy.values())


def test_a_seed_that_blows_up_is_named(data_dir, tmp_path):
    config = run_config(data_dir, num_seeds=2)
    config.optimizer.update({"learning_rate": 1e5, "weight_decay": 1e5, "schedule": "constant"})
    with pytest.raises(UserError, match=rf"in step \d of seed {FIRST}, at learning rate"):
        run(config, tmp_path)


def test_every_seed_goes_on_from_the_same_seed_of_a_run_of_several(finished, data_dir, tmp_path):
    config = run_config(data_dir, num_seeds=SEEDS)
    config.start.run = str(finished / "all")
    for seed in seeds_of(config):
        _, model = start.begin(config, tmp_path, seed)
        chex.assert_trees_all_equal(split(model)[1], split(load_run(finished / "all", seed=seed).model)[1])
    config.seed = FIRST + SEEDS
    with pytest.raises(UserError, match="has seeds 3 to 5"):
        start.begin(config, tmp_path, config.seed)
    config.start.run = str(finished / "alone")
    for seed in seeds_of(config):
        _, model = start.begin(config, tmp_path, seed)
        chex.assert_trees_all_equal(split(model)[1], split(load_run(finished / "alone").model)[1])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 2**31 - 1}, "config.train.num_seeds=2: allowed is at most 2147483647 for the last seed"),
        ({"dataset.num_validation": 10}, "set config.train.same_data_order=True"),
        ({"start.run": "x", "start.prune": True}, "config.start.heads=(): allowed is pairs (layer, head)"),
        ({"train.num_seeds": 0}, "config.train.num_seeds=0: allowed is an integer from 1"),
    ],
)
def test_what_makes_no_sense_with_several_seeds_is_refused(change, named):
    config = attention_config()
    config.train.num_seeds = 2
    config.update_from_flattened_dict(change)
    with pytest.raises(UserError) as error:
        validate(config)
    assert named in str(error.value)
    assert len(str(error.value).splitlines()) <= 2


def test_a_run_from_before_there_were_seeds_goes_on(finished, data_dir, tmp_path, capsys):
    shutil.copytree(finished / "alone", tmp_path / "run")
    path = tmp_path / "run/config.json"
    old = json.loads(path.read_text())
    for key in ("num_seeds", "same_data_order", "seeds_at_once"):
        del old["train"][key]
    path.write_text(json.dumps(old))
    run(run_config(data_dir, seed=FIRST + 1), tmp_path / "run")
    assert "already trained" in capsys.readouterr().out
    assert load_run(tmp_path / "run").step == 2 * STEPS_PER_EPOCH


@pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")  # of ml_collections
def test_the_command_ends_with_mean_and_standard_deviation(finished, data_dir, capsys, tmp_path):
    config = finished / "all/config.json"
    file = tmp_path / "seeds.py"
    file.write_text(
        "import json\nfrom ml_collections import ConfigDict\n\n\ndef get_config():\n"
        f"    return ConfigDict(json.load(open({str(config)!r})))\n"
    )
    assert command.main(["train.py", f"--config={file}", f"--workdir={finished / 'all'}"]) == 0
    last = last_records(finished / "all")["test"]
    out = capsys.readouterr().out
    assert (
        f"final test accuracy {last['accuracy']:.2%} +- {last['accuracy_std']:.2%} "
        f"(mean and standard deviation of {SEEDS} seeds) after step" in out
    )
    assert f"seed={FIRST})" in out
