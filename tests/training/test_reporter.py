"""What process 0 writes and prints of a run, that the others write nothing, and that no run is silent."""

import contextlib
import errno
import os
import shutil
import sys
import time
import types

import pytest
from flax import nnx
from tensorboardX.proto.event_pb2 import Event, SessionLog

from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.training import reporter as module
from attn_cnn_jax.training.reporter import Reporter, SilentReporter, TensorBoard, create_logger


def record(step, split="train", **more):
    return {"step": step, "epoch": step / 10, "split": split, "loss": 0.1 * step, "accuracy": 0.5} | more


@pytest.fixture
def network():
    """A configuration, and its network taken apart."""
    config = attention_config(image_shape=(8, 8, 1), hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4)
    return config, *split(create_model(config.model, rngs=nnx.Rngs(0)))


class Recorder(types.ModuleType):
    """A stand-in for the module of a service: keeps what it is told."""

    def __init__(self):
        super().__init__("recorder")
        self.begun, self.records, self.ended = [], [], 0
        self.Settings = dict

    def init(self, **options):
        self.begun.append(options)

    def log(self, numbers, step):
        self.records.append({"step": step} | numbers)

    def finish(self):
        self.ended += 1


def test_process_0_writes_metrics_and_positions_tells_a_service_and_prints(tmp_path, network, capsys, monkeypatch):
    recorder, (config, skeleton, *arrays) = Recorder(), network
    monkeypatch.setitem(sys.modules, "wandb", recorder)
    config.train.logger = "wandb"
    records = [record(0, "test"), record(10, images_per_second=12.0)]
    for reporter in (SilentReporter(), Reporter(config, tmp_path, skeleton, 0, 40)):
        with contextlib.closing(reporter):
            reporter.positions(0, 0.0, arrays[0])
            reporter.record(records[0])
            reporter.at(10, "training")
            reporter.record(records[1])
    assert read_metrics(tmp_path / "metrics.jsonl") == records
    assert [position["step"] for position in read_positions(tmp_path)] == [0]
    first, second = capsys.readouterr().out.splitlines()
    assert first == "epoch 0.00 step 0/40: test loss 0.0000 accuracy 50.00%"
    assert second.startswith("epoch 1.00 step 10/40: train loss 1.0000 accuracy 50.00%, 12 images/s, ")
    assert second.endswith(" left")
    numbers = {"train/loss": 1.0, "train/accuracy": 0.5, "train/images_per_second": 12.0}
    assert recorder.records == [{"step": 0, "test/loss": 0.0, "test/accuracy": 0.5}, {"step": 10} | numbers]
    assert (recorder.begun[0]["config"]["model"]["num_heads"], recorder.ended) == (4, 1)


def test_a_run_without_a_terminal_says_how_far_it_is_also_during_a_long_step(tmp_path, network, monkeypatch, capsys):
    """A large network said nothing for minutes, between the compiled step and the first record."""
    monkeypatch.setattr(module, "SILENCE", 0.05)
    config, skeleton, *_ = network
    with contextlib.closing(Reporter(config, tmp_path, skeleton, 3, 40)) as reporter:
        said = []
        for step, doing in ((3, "compiling the training step"), (5, "training")):
            reporter.at(step, doing)
            ends = time.monotonic() + 10
            while not any(f"step {step}/40: {doing}" in line for line in said) and time.monotonic() < ends:
                time.sleep(0.01)
                said += capsys.readouterr().out.splitlines()
        assert "step 3/40: compiling the training step, 0:00:00 so far" in said
        assert any(line.startswith("step 5/40: training, 0:0") and line.endswith(" left") for line in said)


def test_tensorboard_reads_what_a_resumed_run_wrote(tmp_path):
    """Of the steps that were done twice, the second file's; both hold a value of step 5."""
    TensorBoard(tmp_path, 0).log({"train/loss": 2.5}, step=5)
    before = set(tmp_path.iterdir())
    TensorBoard(tmp_path, 4).log({"train/loss": 1.5, "train/accuracy": 0.25}, step=5)
    (second,) = set(tmp_path.iterdir()) - before
    events = [Event.FromString(data) for data in contents(second.read_bytes())]
    assert events[0].file_version == "brain.Event:2"
    assert (events[1].step, events[1].session_log.status) == (5, SessionLog.START)
    values = [(event.step, value.tag, value.simple_value) for event in events[2:] for value in event.summary.value]
    assert values == [(5, "train/loss", 1.5), (5, "train/accuracy", 0.25)]


def contents(data):
    """TFRecord: length (8 bytes), its checksum (4), content, the content's checksum (4)."""
    while data:
        length = int.from_bytes(data[:8], "little")
        yield data[12 : 12 + length]
        data = data[16 + length :]


def test_a_full_disk_is_said_at_the_record_that_it_refuses(tmp_path, network, monkeypatch):
    """Not by a thread: that ended, and the eleventh record waited for it for ever."""
    config, skeleton, *_ = network
    with contextlib.closing(Reporter(config, tmp_path, skeleton, 0, 40)) as reporter:
        writer = reporter._logger._writer._py_recordio_writer
        monkeypatch.setattr(writer, "_writer", open("/dev/full", "wb", buffering=0))  # noqa: SIM115
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            reporter.record(record(10))
        monkeypatch.undo()


def test_a_run_is_one_record_of_a_service_which_says_why_it_cannot_begin(tmp_path, monkeypatch):
    config = attention_config()
    for name, key in (("wandb", "id"), ("trackio", "name")):
        recorder, workdir, config.train.logger = Recorder(), tmp_path / name, name
        monkeypatch.setitem(sys.modules, name, recorder)
        for _ in range(2):
            workdir.mkdir()
            create_logger(config, workdir, 0)
            create_logger(config, workdir, 3)
            shutil.rmtree(workdir)  # another run at the same path is another record
        first, resumed, other, _ = (options[key] for options in recorder.begun)
        assert first == resumed != other
    monkeypatch.setattr(recorder, "init", lambda **options: (_ for _ in ()).throw(RuntimeError("no key")))
    with pytest.raises(UserError, match=r"cannot begin: no key\nsee that package's documentation"):
        create_logger(config, tmp_path, 0)
    monkeypatch.setitem(sys.modules, "trackio", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"pip install -e \"\.\[trackio\]\""):
        create_logger(config, tmp_path, 0)
