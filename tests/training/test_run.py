"""A whole small run in this process, on eight fake devices, and what load_run makes of it."""

import builtins
import errno
import io
import os
import re
import resource
import shutil

import jax
import numpy as np
import pytest
import tensorstore
from flax import nnx

from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.fingerprint import fingerprint
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training.loop import run

BATCH_SIZE, STEPS_PER_EPOCH = 96, 1442 // 96


@pytest.fixture
def config(data_dir):
    config = attention_config(
        image_shape=(8, 8, 1), hidden_size=16, intermediate_size=8, num_layers=1, num_heads=4, attention_dropout=0.0
    )
    config.dataset.update({"name": "digits", "data_dir": str(data_dir)})
    config.augment.update({"crop_padding": 1, "flip": False})
    config.train.update({"batch_size": BATCH_SIZE, "num_epochs": 3, "log_every_steps": 10, "tensorboard": False})
    return config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def trained(config, finished):
    """A finished run, trained once for the tests here."""
    if not (finished / "metrics.jsonl").exists():
        run(config, finished)
    return finished


def test_metrics_have_every_record_once(trained):
    records = read_metrics(trained / "metrics.jsonl")
    last = 3 * STEPS_PER_EPOCH
    assert [r["step"] for r in records if r["split"] == "train"] == [10, 20, 30, 40, last]
    assert [(r["step"], r["epoch"]) for r in records if r["split"] == "test"] == [
        (epoch * STEPS_PER_EPOCH, epoch) for epoch in (1, 2, 3)
    ]
    for record in records:
        expected = {"step", "epoch", "split", "loss", "accuracy"}
        if record["split"] == "train":
            expected |= {"learning_rate", "images_per_second"}
        assert record.keys() == expected
    losses = [r["loss"] for r in records if r["split"] == "train"]
    assert losses[-1] < losses[0]


def test_a_record_is_the_mean_of_the_steps_since_the_one_before(trained, config, tmp_path):
    config.train.log_every_steps = 1
    run(config, tmp_path)
    of_steps, of_records = (
        [record for record in read_metrics(folder / "metrics.jsonl") if record["split"] == "train"]
        for folder in (tmp_path, trained)
    )
    last = 0
    for record in of_records:
        steps = of_steps[last : record["step"]]
        assert record["loss"] == pytest.approx(np.mean([step["loss"] for step in steps]), abs=1e-3)
        assert record["learning_rate"] == pytest.approx(steps[-1]["learning_rate"])
        last = record["step"]


def test_load_run_predicts_what_the_run_measured(trained, config):
    restored = load_run(trained)
    assert restored.step == 3 * STEPS_PER_EPOCH
    assert restored.config.model.hidden_size == 16
    data = sources.load("digits", config.dataset.data_dir)
    assert restored.data == fingerprint(data)
    probabilities = restored.predict(data.test.images, batch_size=64)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    record = read_metrics(trained / "metrics.jsonl")[-1]
    assert (probabilities.argmax(axis=1) == data.test.labels).mean() == pytest.approx(record["accuracy"], abs=1e-6)
    loss = -np.log(probabilities[np.arange(len(data.test.labels)), data.test.labels]).mean()
    assert loss == pytest.approx(record["loss"], rel=1e-5)


def test_load_run_gives_attention_that_sums_to_one(trained):
    (attention,) = load_run(trained).attention()
    assert attention.shape == (4, 4, 4, 4, 4)
    np.testing.assert_allclose(attention.sum(axis=(3, 4)), 1, rtol=1e-5)


def test_attention_of_a_content_network_needs_pictures(config, tmp_path, one_device):
    config.model.content = True
    config.train.num_epochs = 1
    run(config, tmp_path)
    restored = load_run(tmp_path)
    with pytest.raises(UserError, match="give images"):
        restored.attention()
    images = sources.load("digits", config.dataset.data_dir).test.images[:3]
    (attention,) = restored.attention(images, batch_size=2)
    assert attention.shape == (3, 4, 4, 4, 4, 4)
    np.testing.assert_allclose(attention.sum(axis=(4, 5)), 1, rtol=1e-5)
    np.testing.assert_allclose(restored.attention(images[1:2])[0][0], attention[1], atol=1e-6)


@pytest.mark.parametrize(
    "images", [np.zeros((2, 8, 8, 1)), np.zeros((8, 8, 1), np.uint8), np.zeros((2, 8, 8, 3), np.uint8)]
)
def test_predict_refuses_pictures_of_another_kind(trained, images):
    with pytest.raises(UserError, match=r"allowed is \(B, H, W, 1\) uint8"):
        load_run(trained).predict(images)


def test_steps_are_kept_and_found_by_number(trained):
    steps = [2 * STEPS_PER_EPOCH, 3 * STEPS_PER_EPOCH]  # the last two
    assert load_run(trained, step=steps[0]).step == steps[0]
    with pytest.raises(UserError, match=f"has checkpoints of steps {steps[0]}, {steps[1]}"):
        load_run(trained, step=1)
    with pytest.raises(UserError, match=r"train with config\.dataset\.num_validation above 0"):
        load_run(trained, step="best")


def test_a_finished_run_is_not_trained_again(trained, config, capsys):
    before = (trained / "metrics.jsonl").read_text()
    records = run(config, trained)
    assert "already trained" in capsys.readouterr().out
    assert records["test"] == read_metrics(trained / "metrics.jsonl")[-1]
    assert (trained / "metrics.jsonl").read_text() == before


def test_lost_records_are_counted(trained, config, tmp_path, capsys):
    workdir = shutil.copytree(trained, tmp_path / "run")
    run(config, workdir)
    assert "has lost" not in capsys.readouterr().out
    lines = (trained / "metrics.jsonl").read_text().splitlines(keepends=True)
    (workdir / "metrics.jsonl").write_text("".join(lines[:1] + lines[4:]))
    run(config, workdir)
    lost = f"has lost 3 records up to step {3 * STEPS_PER_EPOCH}, the first of step {STEPS_PER_EPOCH} (test)"
    assert lost in capsys.readouterr().out


def test_another_configuration_is_refused_with_the_keys_that_differ(trained, config):
    config.optimizer.learning_rate = 0.2
    with pytest.raises(UserError, match=r"optimizer.learning_rate \(0.1 there, 0.2 here\)"):
        run(config, trained)


def test_a_run_is_given_more_epochs(config, tmp_path, capsys, one_device):
    """With a constant learning rate it then is the run that had them from the start."""
    config.optimizer.update({"schedule": "constant", "warmup_fraction": 0.0, "learning_rate": 0.05})
    config.train.num_epochs = 2
    run(config, tmp_path / "long")
    config.train.num_epochs = 1
    run(config, tmp_path / "short")
    capsys.readouterr()
    config.train.num_epochs = 2
    run(config, tmp_path / "short")
    said = capsys.readouterr().out
    assert "num_epochs raised from 1 to 2: from here on the learning rate is that of the longer run, 0.05 in" in said
    assert_same_parameters(tmp_path / "short", tmp_path / "long")
    assert read_config(tmp_path / "short").train.num_epochs == 2
    config.train.num_epochs = 1
    with pytest.raises(UserError, match=r"train.num_epochs \(2 there, 1 here\)"):
        run(config, tmp_path / "short")


def test_a_run_prints_as_a_few_lines(trained):
    assert repr(load_run(trained)) == (
        f"Run on digits after step {3 * STEPS_PER_EPOCH}, seed 0\n"
        "  1 layer of attention, 4 heads each; encoding quadratic; 1,918 parameters, float32\n"
        "  pictures 8x8x1 uint8 -> 10 classes"
    )


def test_predictions_under_jit(trained):
    restored = load_run(trained)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)
    logits = jax.jit(lambda images: restored.model(restored.normalised(images))[0])(images)
    np.testing.assert_allclose(jax.nn.softmax(logits), restored.predict(images), rtol=1e-5)
    with pytest.raises(UserError, match=r"allowed is \(B, H, W, 1\) uint8"):
        jax.jit(restored.normalised)(images.astype(np.float32))


def test_best_is_chosen_on_the_validation_split(config, tmp_path, one_device):
    config.dataset.num_validation = 200
    config.train.num_epochs = 6
    config.checkpoint.keep_last = 1
    run(config, tmp_path)
    accuracy = {
        r["step"]: r["accuracy"] for r in read_metrics(tmp_path / "metrics.jsonl") if r["split"] == "validation"
    }
    assert len(accuracy) == 6
    best = load_run(tmp_path, step="best").step
    assert accuracy[best] == max(accuracy.values())


def test_periods_that_do_not_divide_each_other_are_said_as_they_are(config, tmp_path, one_device, capsys):
    config.dataset.num_validation = 200
    config.train.update({"num_epochs": 13, "eval_every_epochs": 4})
    config.checkpoint.update({"every_epochs": 2, "keep_every_epochs": 3, "keep_last": 1})
    config.optimizer.schedule = "step"
    run(config, tmp_path)
    said = capsys.readouterr().out
    assert "checkpoints are saved every 2 epochs: those of every 6 epochs stay" in said
    assert "checkpoints are saved every 2 epochs: those of every 4 epochs and of the last have a validation" in said
    assert "config.optimizer.boundaries: 80, 150, 250 have no effect" in said
    steps_per_epoch = (1442 - 200) // BATCH_SIZE
    left = {int(path.name) / steps_per_epoch for path in (tmp_path / "checkpoints").iterdir()}
    best = load_run(tmp_path, step="best").step / steps_per_epoch
    assert left == {6, 12, 13, best}
    assert best in (4, 8, 12, 13)


def test_a_run_that_blows_up_names_step_rate_and_checkpoint(config, tmp_path):
    config.optimizer.update({"learning_rate": 1e5, "weight_decay": 1e5, "schedule": "constant"})
    with pytest.raises(UserError) as error:
        run(config, tmp_path)
    message = str(error.value)
    assert re.search(r" in step \d, at learning rate 1e\+05; no checkpoint yet", message), message
    assert len(message.splitlines()) == 2
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_batch_that_devices_cannot_share_evenly_is_filled_up(config, tmp_path, capsys):
    config.train.update({"batch_size": 100, "num_epochs": 1})
    run(config, tmp_path)
    said = capsys.readouterr().out
    assert "batch_size=100 over 8 devices: 13 pictures each, 4 of all 104 only fill up the last shares" in said
    assert load_run(tmp_path).step == 1442 // 100


def test_a_batch_must_fit_the_data(config, tmp_path):
    config.train.batch_size = 1600
    with pytest.raises(UserError, match=r"together they must not exceed 1,442"):
        run(config, tmp_path / "b")
    assert not list(tmp_path.iterdir())


def test_load_run_names_what_is_missing(tmp_path):
    with pytest.raises(UserError, match="is not a run directory"):
        load_run(tmp_path)


def parameters(workdir):
    return jax.tree.leaves(load_run(workdir).model)


def assert_same_parameters(workdir, other):
    for a, b in zip(parameters(workdir), parameters(other), strict=True):
        np.testing.assert_array_equal(a, b)


def damage(checkpoint, kind):
    """Spoils all files that hold numbers of a checkpoint's network."""
    for path in checkpoint.glob("network/**/d/*"):
        if kind == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# What Orbax's reading threads leave behind when a file is not whole.
orphans = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@orphans
@pytest.mark.parametrize("kind", ["truncated", "missing"])
def test_a_damaged_checkpoint_is_named_and_training_goes_on_from_the_one_before(trained, config, tmp_path, capfd, kind):
    workdir = tmp_path / "run"
    shutil.copytree(trained, workdir)
    last, before = 3 * STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH
    damage(workdir / "checkpoints" / str(last), kind)
    with pytest.raises(UserError, match=rf"the checkpoint of step {last} in .* is damaged"):
        load_run(workdir)
    run(config, workdir)
    out, err = capfd.readouterr()
    assert f"skipping: the checkpoint of step {last}" in out
    assert f"going on after step {before}" in out
    assert "Traceback" not in out + err
    assert_same_parameters(workdir, trained)


@orphans
def test_a_flipped_byte_anywhere_is_noticed_or_harmless(trained, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(trained, workdir)
    noticed, expected = 0, load_run(trained)
    for path in sorted((workdir / "checkpoints" / str(3 * STEPS_PER_EPOCH)).rglob("*")):
        if not path.is_file() or not path.stat().st_size:
            continue
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(flipped) // 2] ^= 0xFF
        path.write_bytes(flipped)
        try:
            found = load_run(workdir)
            jax.tree.map(np.testing.assert_array_equal, nnx.state(found.model), nnx.state(expected.model))
            assert found.config.to_dict() == expected.config.to_dict()
        except UserError:
            noticed += 1
        path.write_bytes(whole)
    assert noticed >= 3


@orphans
def test_without_an_intact_checkpoint_no_try_starts_anew(trained, config, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(trained, workdir)
    for checkpoint in (workdir / "checkpoints").iterdir():
        damage(checkpoint, "truncated")
    for _ in range(2):
        with pytest.raises(UserError, match=r"no checkpoint in .* is intact.*/damaged\n.* another --workdir"):
            run(config, workdir)
        assert (workdir / "metrics.jsonl").read_text() == (trained / "metrics.jsonl").read_text()
    assert len(list((workdir / "damaged").iterdir())) == 2


@pytest.fixture
def fail_to_open(monkeypatch):
    """`fail_to_open(ending, number)`: the next file whose path ends so is not opened, for this reason."""

    def fail(ending, number, module, open_file):
        def fail_once(path, *arguments, **keywords):
            if str(path).endswith(ending):
                monkeypatch.setattr(module, "open", open_file)
                raise OSError(number, os.strerror(number), str(path))
            return open_file(path, *arguments, **keywords)

        monkeypatch.setattr(module, "open", fail_once)

    return lambda ending, number: [fail(ending, number, module, module.open) for module in (builtins, io)]


def files_of(workdir):
    return {path: path.lstat().st_mtime_ns for path in workdir.rglob("*") if path.is_file() and path.name != ".lock"}


def assert_stops(call, workdir, reason):
    """The call is refused because the system fails, in two lines; nothing in the run directory changes."""
    before = files_of(workdir)
    with pytest.raises(UserError) as error:
        call()
    first, second = str(error.value).splitlines()
    assert first.startswith(f"the checkpoint of step {3 * STEPS_PER_EPOCH} in {workdir}")
    assert f"cannot be read: {reason}" in first
    assert "stays where it is" in second
    assert "the same command goes on" in second
    assert files_of(workdir) == before


NUMBERS = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
@pytest.mark.parametrize("file", ["config/metadata", "checksums/metadata", "network/_METADATA"])
def test_what_the_system_cannot_read_is_not_damaged(trained, fail_to_open, file, number):
    fail_to_open(f"{3 * STEPS_PER_EPOCH}/{file}", number)
    assert_stops(lambda: load_run(trained), trained, os.strerror(number))


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_a_run_stops_at_a_checkpoint_that_the_system_cannot_read(trained, config, fail_to_open, number, capsys):
    fail_to_open(f"{3 * STEPS_PER_EPOCH}/progress/metadata", number)
    assert_stops(lambda: run(config, trained), trained, os.strerror(number))
    run(config, trained)
    assert f"going on after step {3 * STEPS_PER_EPOCH} " in capsys.readouterr().out


@pytest.fixture
def tensorstore_opens_nothing(monkeypatch):
    """The process has as many files open as it may, but only while TensorStore reads."""
    open_array = tensorstore.open

    def fail(*arguments, **keywords):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            future = open_array(*arguments, **keywords)
            future.exception()  # waits until it is there
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return future

    monkeypatch.setattr(tensorstore, "open", fail)


@orphans
def test_what_tensorstore_cannot_read_is_not_damaged(trained, config, tensorstore_opens_nothing):
    assert_stops(lambda: load_run(trained), trained, os.strerror(errno.EMFILE))
    assert_stops(lambda: run(config, trained), trained, os.strerror(errno.EMFILE))


@pytest.fixture
def fail_to_show(monkeypatch):
    """`fail_to_show(ending, times)`: the system fails so often to say what lies at a path that ends so."""
    real, left = os.stat, {}

    def fail(path, *arguments, **keywords):
        for ending in left:
            if str(path).endswith(ending) and left[ending]:
                left[ending] -= 1
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *arguments, **keywords)

    monkeypatch.setattr(os, "stat", fail)
    return lambda ending, times: left.update({ending: times})


@pytest.mark.parametrize("part", ["", "/config", "/network"])
def test_what_the_system_does_not_show_is_not_missing(trained, fail_to_show, part):
    """`exists()` and `is_dir()` are False where the system cannot say."""
    fail_to_show(f"checkpoints/{3 * STEPS_PER_EPOCH}{part}", 1)
    assert load_run(trained).step == 3 * STEPS_PER_EPOCH
    fail_to_show(f"checkpoints/{3 * STEPS_PER_EPOCH}{part}", 1000)
    with pytest.raises(UserError, match=rf"the checkpoint of step {3 * STEPS_PER_EPOCH} in .*: Stale file handle"):
        load_run(trained)
