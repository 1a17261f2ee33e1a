"""What process 0 writes and prints of a run, and that the others write nothing."""

import contextlib
import errno
import inspect
import io
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.training import loop
from attn_cnn_jax.training import reporter as module
from attn_cnn_jax.training.events import Events
from attn_cnn_jax.training.reporter import Bar, Terminal, clock, create_reporter


def record(step, split="train"):
    return {"step": step, "epoch": step / 10, "split": split, "loss": 0.1 * step, "accuracy": 0.5}


@pytest.fixture
def network():
    """A configuration, and its network taken apart."""
    config = attention_config(image_shape=(8, 8, 1), hidden_size=8, intermediate_size=8, num_layers=1, num_heads=4)
    config.train.batch_size = 10
    return config, *split(create_model(config.model, rngs=nnx.Rngs(0)))


def report_all(tmp_path, network):
    config, skeleton, *arrays = network
    reporter = create_reporter(config, tmp_path, skeleton, after_step=0, total_steps=40)
    with contextlib.closing(reporter):
        reporter.positions(0, 0.0, arrays[0])
        reporter.advance(10)
        reporter.record(record(10))


def test_process_0_writes_metrics_positions_and_tensorboard(tmp_path, network):
    report_all(tmp_path, network)
    assert read_metrics(tmp_path / "metrics.jsonl") == [record(10)]
    assert [position["step"] for position in read_positions(tmp_path)] == [0]
    (events,) = tmp_path.glob("events.out.tfevents.*")
    data = events.read_bytes()
    for name in (b"train/loss", b"train/accuracy"):
        assert name in data
    assert b"train/step" not in data


def test_tensorboard_reads_what_a_resumed_run_wrote(tmp_path):
    """Of the steps that were done twice, the second file's; both hold a value of step 5."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    Events(tmp_path, 0).scalars({"train/loss": 2.5}, 5)
    second = Events(tmp_path, 4)
    second.scalars({"train/loss": 1.5, "train/accuracy": 0.25}, 5)
    second.picture("figures/centres", np.full((2, 3, 3), 7, np.uint8), 5)
    assert len(list(tmp_path.iterdir())) == 2
    events = [Event.FromString(data) for data in records_of(second._path.read_bytes())]
    assert events[0].file_version == "brain.Event:2"
    assert (events[1].step, events[1].session_log.status) == (5, SessionLog.START)
    values = [(event.step, value.tag, value.simple_value) for event in events[2:4] for value in event.summary.value]
    assert values == [(5, "train/loss", 1.5), (5, "train/accuracy", 0.25)]
    picture = events[4].summary.value[0]
    assert (picture.tag, picture.image.height, picture.image.width) == ("figures/centres", 2, 3)


def records_of(data):
    """TFRecord: length (8 bytes), CRC-32C of it, content, CRC-32C of it; the checksums masked as the format says."""
    while data:
        length = struct.unpack("<Q", data[:8])[0]
        content = data[12 : 12 + length]
        for part, found in ((data[:8], data[8:12]), (content, data[12 + length : 16 + length])):
            crc = crc32c(part)
            assert struct.unpack("<I", found)[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
        yield content
        data = data[16 + length :]


def crc32c(data):
    """The definition: division by the Castagnoli polynomial, bit by bit, lowest first."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_full_disk_is_said_at_the_record_that_it_refuses(tmp_path, network, monkeypatch):
    """Not by a thread: that ended, and the eleventh record waited for it for ever."""
    config, skeleton, *_ = network
    reporter = create_reporter(config, tmp_path, skeleton, after_step=0, total_steps=40)
    write = os.write

    def full(file, data):
        if "tfevents" in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    with contextlib.closing(reporter), pytest.raises(OSError, match=r"No space left on device: '.*tfevents"):
        reporter.record(record(10))


def test_records_are_on_the_disk_before_the_checkpoint_after_them(tmp_path, network, monkeypatch):
    config, skeleton, *arrays = network
    config.train.logger = "none"
    done = []
    monkeypatch.setattr(os, "fsync", lambda file: done.append(Path(os.readlink(f"/proc/self/fd/{file}")).name))
    monkeypatch.setattr(loop.ckpt, "save", lambda *arguments: done.append("checkpoint"))
    reporter = create_reporter(config, tmp_path, skeleton, after_step=0, total_steps=40)
    reporter.positions(0, 0.0, arrays[0])
    done.clear()
    save = inspect.unwrap(loop.save_checkpoint)  # with stand-ins, which checked annotations refuse
    save(SimpleNamespace(config=config, data={}), None, reporter, 10, None, loop.EMPTY)
    assert done == ["metrics.jsonl", "positions.jsonl", "checkpoint"]


def test_other_processes_write_and_print_nothing(tmp_path, network, monkeypatch, capsys):
    monkeypatch.setattr(module, "is_main", lambda: False)
    report_all(tmp_path, network)
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr() == ("", "")


def test_a_bar_tells_the_time_left_in_days():
    with io.StringIO() as screen, Bar(total=1000, file=screen, bar_format="{left}") as bar:
        bar.n, bar.start_t = 10, bar.start_t - 20_000  # ten of a thousand in 20,000 s: 1,980,000 s are ahead
        assert str(bar) == "22 days 22 h"


def test_plain_lines_where_there_is_no_terminal(capsys):
    terminal = Terminal(0, 40, 10)
    terminal.say(record(0, "test"))
    assert capsys.readouterr().out == "epoch 0.00 step 0/40: test loss 0.0000 accuracy 50.00%\n"
    terminal.advance(10)
    terminal.say(record(10) | {"images_per_second": 12.0})
    terminal.close()
    out, err = capsys.readouterr()
    assert out.startswith("epoch 1.00 step 10/40: train loss 1.0000 accuracy 50.00%, 12 pictures/s, ")
    assert out.endswith(" left\n")
    assert err == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "0:05"), (95, "1:35"), (4000, "1:06:40"), (90_000, "1 day 1 h"), (13e6, "150 days 11 h")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text
