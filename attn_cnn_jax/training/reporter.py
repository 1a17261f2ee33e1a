"""What a run writes and prints while it trains: metrics.jsonl, positions.jsonl, TensorBoard or a service, the terminal.

Process 0 has a `Reporter`, the others a `SilentReporter`: the loop calls both in the same way.
"""

import importlib
import secrets
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from tqdm import tqdm

from attn_cnn_jax import output
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.models.variables import Skeleton
from attn_cnn_jax.runs import metrics, positions

BEFORE_START = -1  # as the step that a run continues after: none, all records are to be written again
SILENCE = 30.0  # seconds after which a run without a terminal says how far it is


class SilentReporter:
    """Reports nothing: for the processes that do not write."""

    record = positions = at = close = staticmethod(lambda *arguments: None)


class Reporter:
    """Writes into the run directory, and prints how training stands."""

    def __init__(self, config: ConfigDict, workdir: Path, skeleton: Skeleton, after_step: int, total_steps: int):
        """Opens the files of a run of so many steps that continues after `after_step`, BEFORE_START for a new one.

        Later records are removed: the run writes them again. Of `config` are read `model` and `train.logger`.
        """
        self._metrics, self._total = workdir / metrics.FILE, total_steps
        metrics.cut_back(self._metrics, after_step)
        self.positions = positions.create_recorder(config.model, skeleton, workdir, after_step)
        self._logger = create_logger(config, workdir, after_step)
        self._first = self._step = max(0, after_step)
        self._started = self._last_said = time.monotonic()
        self._doing, self._closed, self._bar = "starting", threading.Event(), None
        if sys.stderr is not None and sys.stderr.isatty():
            self._bar = tqdm(total=total_steps, initial=self._first, unit=" steps", dynamic_ncols=True, mininterval=0.3)
        else:
            threading.Thread(target=self._break_silence, daemon=True).start()

    def record(self, record: dict) -> None:
        """Reports metrics: `step`, `epoch`, `split` and numbers, as in runs/metrics.py."""
        metrics.append(self._metrics, record)
        numbers = dict(record)
        step, epoch, split = (numbers.pop(key) for key in ("step", "epoch", "split"))
        if self._logger is not None:
            self._logger.log({f"{split}/{key}": value for key, value in numbers.items()}, step=step)
        text = f"{split} loss {record['loss']:.4f} accuracy {metrics.accuracy_in_words(record)}"
        if self._bar is None:
            speed = f", {record['images_per_second']:.0f} images/s" if "images_per_second" in record else ""
            self._say(f"epoch {epoch:.2f} step {step}/{self._total}: {text}{speed}{self._left(step)}")
        elif split == "train":
            self._bar.set_description_str(f"epoch {epoch:.1f} {text}")
        else:
            self._bar.write(f"epoch {epoch:.0f}: {text}")

    def at(self, step: int, doing: str) -> None:
        """Reports how many steps are done, and what comes next, in words."""
        if self._bar is not None:
            self._bar.update(step - self._step)
        if step == self._first:  # what is before the first step takes another time
            self._started = time.monotonic()
        self._step, self._doing = step, doing

    def close(self) -> None:
        """Ends the report; what was reported is written."""
        self._closed.set()
        if self._bar is not None:
            self._bar.close()
        if self._logger is not None:
            self._logger.finish()

    def _say(self, text: str) -> None:
        output.say(text)
        self._last_said = time.monotonic()

    def _left(self, step: int) -> str:
        """Returns the time left in words, by the steps so far."""
        done = step - self._first
        seconds = (time.monotonic() - self._started) / max(1, done) * (self._total - step)
        return f", {timedelta(seconds=round(seconds))} left" if done > 0 else ""

    def _break_silence(self) -> None:
        """Says how far the run is whenever nothing was said for `SILENCE`, also while a step or the compiler works."""
        while not self._closed.wait(SILENCE / 10):
            if time.monotonic() - self._last_said >= SILENCE:
                passed = timedelta(seconds=round(time.monotonic() - self._started))
                self._say(f"step {self._step}/{self._total}: {self._doing}, {passed} so far{self._left(self._step)}")


class TensorBoard:
    """Writes events, each before training continues.

    tensorboardX's own `SummaryWriter` leaves that to a thread, which ends once the disk is full: training would wait.
    """

    def __init__(self, workdir: Path, after_step: int):
        """Begins a file; of the run's earlier ones TensorBoard then shows the events up to `after_step` alone."""
        # Here, as they take long to import.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]

        self._event, self._writer = Event, EventsWriter(str(workdir / "events"), f".{secrets.token_hex(4)}")
        self._write(step=after_step + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Writes numbers by name."""
        values = [{"tag": name, "simple_value": number} for name, number in numbers.items()]
        self._write(step=step, summary={"value": values})

    def finish(self) -> None:
        """Closes the file."""
        self._writer.close()

    def _write(self, **event: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), **event))
        self._writer.flush()


def create_logger(config: ConfigDict, workdir: Path, after_step: int) -> Any:
    """Returns what `config.train.logger` names, with `log(numbers, step=step)` and `finish()`; None for "none".

    Weights & Biases and Trackio are configured as they document: `WANDB_MODE=offline` keeps W&B's records on this
    machine, where Trackio's are in any case (`TRACKIO_DIR`). A resumed run continues its record, by the file
    `logger_id`. UserError if the package is not installed or cannot begin.
    """
    name, file = config.train.logger, workdir / "logger_id"
    if name == "none":
        return None
    if name == "tensorboard":
        return TensorBoard(workdir, after_step)
    if not file.exists():
        write_atomically(file, secrets.token_hex(8) + "\n")
    identity = file.read_text(encoding="utf-8").strip()
    label = f"{workdir.absolute().name}-{identity[:6]}"  # by which Trackio continues
    try:
        module = importlib.import_module(name)
        options = {"embed": False}
        if name == "wandb":
            options = {"id": identity, "dir": str(workdir), "settings": module.Settings(silent=True)}
        module.init(project="attn-cnn-jax", name=label, config=config.to_dict(), resume="allow", **options)
    except ImportError as error:
        needed = f'needs a package that is not installed ({error.name}): pip install -e ".[{name}]"'
        raise UserError(f"config.train.logger={name!r} {needed}") from error
    except Exception as error:  # each has its own, for no key, no network, no room
        raise UserError(
            f"config.train.logger={name!r} cannot begin: {shortened(error)}\n"
            "see that package's documentation, or set config.train.logger=none"
        ) from error
    return module
