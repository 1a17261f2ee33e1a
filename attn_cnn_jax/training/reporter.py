"""What a run writes and prints while it trains: metrics.jsonl, positions.jsonl, TensorBoard, the terminal.

Process 0 has a `Reporter`, the others a `SilentReporter`: the loop calls both in the same way.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from tqdm import tqdm

from attn_cnn_jax import files, output
from attn_cnn_jax.models.variables import Arrays, Skeleton
from attn_cnn_jax.runs import metrics, positions
from attn_cnn_jax.training.distributed.agreement import is_main
from attn_cnn_jax.training.loggers import create_logger

NOTHING = -1  # as the step that a run goes on after: none, all records are to be written again


class SilentReporter:
    """Reports nothing: for the processes that do not write."""

    def record(self, record: dict) -> None:
        """Reports metrics: `step`, `epoch`, `split` and numbers, as in runs/metrics.py."""

    def positions(self, step: int, epoch: float, parameters: Arrays) -> None:
        """Reports where every head looks, as in runs/positions.py."""

    def flush(self) -> None:
        """Waits until what was recorded is on the disk."""

    def advance(self, steps: int) -> None:
        """Reports that so many more steps are done."""

    def close(self) -> None:
        """Ends the report; what was reported is written."""


class Reporter(SilentReporter):
    """Writes into the run directory, and prints how training stands."""

    def __init__(
        self,
        config: ConfigDict,
        workdir: Path,
        skeleton: Skeleton,
        *,
        after_step: int,
        total_steps: int,
    ):
        """Opens the files of a run that goes on after `after_step`.

        Args:
          config: of the run; read are `model`, `train.batch_size` and `train.logger`.
          workdir: the run directory.
          skeleton: of the network, see models/variables.py.
          after_step: the number of finished steps, NOTHING without a checkpoint; later records are removed, for the
            run writes them again.
          total_steps: length of the run.
        """
        self._workdir = workdir
        self._metrics = workdir / metrics.FILE
        metrics.cut_back(self._metrics, after_step)
        self._record_positions = positions.create_recorder(config, skeleton, workdir, after_step)
        self._board = None
        if config.train.logger == "tensorboard":
            from attn_cnn_jax.training.events import Events  # takes long to import

            self._board = Events(workdir, after_step)
        self._logger = create_logger(config.train.logger, config, workdir)
        self._terminal = Terminal(max(0, after_step), total_steps, config.train.batch_size)

    def record(self, record: dict) -> None:
        metrics.append(self._metrics, record)
        split = record["split"]
        numbers = {f"{split}/{key}": value for key, value in record.items() if key not in ("step", "epoch", "split")}
        if self._board is not None:
            self._board.scalars(numbers, record["step"])
        self._logger.log(record["step"], {"epoch": record["epoch"]} | numbers)
        self._terminal.say(record)

    def positions(self, step: int, epoch: float, parameters: Arrays) -> None:
        self._record_positions(step, epoch, parameters)

    def flush(self) -> None:
        for path in (self._metrics, self._workdir / positions.FILE):
            files.flush(path)

    def advance(self, steps: int) -> None:
        self._terminal.advance(steps)

    def close(self) -> None:
        self._terminal.close()
        self._logger.close()


def create_reporter(*arguments, **options) -> SilentReporter:
    """Returns this process's reporter; see `Reporter` for the arguments."""
    return Reporter(*arguments, **options) if is_main() else SilentReporter()


class Bar(tqdm):
    """A bar whose time left is in days where it is long."""

    @property
    def format_dict(self) -> dict[str, Any]:
        values = dict(super().format_dict)
        rate, elapsed = values["rate"], values["elapsed"]
        rate = rate or ((self.n - self.initial) / elapsed if elapsed else None)
        return values | {"left": clock((self.total - self.n) / rate) if rate else "?"}


class Terminal:
    """A bar with rate and time left on a terminal; elsewhere one plain line per record."""

    def __init__(self, step: int, total_steps: int, batch_size: int):
        """Starts the clock of a run with `step` of `total_steps` done, of `batch_size` pictures each."""
        self._first, self._total, self._batch_size = step, total_steps, batch_size
        self._started = time.monotonic()
        self._bar = None
        if sys.stderr is not None and sys.stderr.isatty():
            self._bar = Bar(
                total=total_steps * batch_size,
                initial=step * batch_size,
                unit=" pictures",
                unit_scale=True,
                dynamic_ncols=True,
                mininterval=0.3,
                bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{left}, {rate_fmt}{postfix}]",
            )

    def advance(self, steps: int) -> None:
        """Moves the bar by so many steps."""
        self._draw(lambda bar: bar.update(steps * self._batch_size))

    def say(self, record: dict) -> None:
        """Says how training stands after a record of metrics."""
        text = f"{record['split']} loss {record['loss']:.4f} accuracy {record['accuracy']:.2%}"
        if self._bar is not None:
            if record["split"] == "train":
                self._draw(lambda bar: bar.set_description_str(f"epoch {record['epoch']:.1f} {text}"))
            else:
                self._draw(lambda bar: bar.write(f"epoch {record['epoch']:.0f}: {text}"))
            return
        step = record["step"]
        seconds = (time.monotonic() - self._started) / max(1, step - self._first) * (self._total - step)
        left = f", {clock(seconds)} left" if step > self._first else ""
        rate = f", {record['images_per_second']:.0f} pictures/s" if "images_per_second" in record else ""
        output.say(f"epoch {record['epoch']:.2f} step {step}/{self._total}: {text}{rate}{left}")

    def close(self) -> None:
        """Leaves the bar as it stands."""
        self._draw(lambda bar: bar.close())

    def _draw(self, change: Callable[[tqdm], object]) -> None:
        """Changes the bar, where there is one."""
        if self._bar is not None:
            change(self._bar)


def clock(seconds: float) -> str:
    """Returns a duration as text: `95 -> "1:35"`, `4000 -> "1:06:40"`, `200_000 -> "2 days 8 h"`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        days, hours = divmod(hours + (minutes >= 30), 24)
        return f"{days} day{'s' if days > 1 else ''} {hours} h"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
