"""What a run says and writes while it trains: metrics.jsonl, TensorBoard, progress on the terminal."""

import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from attn_cnn_jax.runs.metrics import append, cut_back


class MetricsWriter:
    """Appends records to `metrics.jsonl` and, if asked, to TensorBoard event files in the same folder."""

    def __init__(self, workdir: Path, *, after_step: int, tensorboard: bool):
        """Opens the files of a run that goes on after `after_step` (0: a new run)."""
        self._path = workdir / "metrics.jsonl"
        cut_back(self._path, after_step)
        self._board = None
        if tensorboard:
            from tensorboardX import SummaryWriter

            self._board = SummaryWriter(str(workdir), purge_step=after_step + 1)

    def write(self, *records: dict) -> None:
        """Writes the records of one moment: `step`, `epoch`, `split`, of several seeds `seed`, and numbers."""
        append(self._path, *records)
        if self._board is not None:
            for record in records:
                seed = f"/seed_{record['seed']}" if "seed" in record else ""
                for name, value in record.items():
                    if name not in ("step", "epoch", "split", "seed"):
                        self._board.add_scalar(f"{record['split']}/{name}{seed}", value, record["step"])

    def write_pictures(self, step: int, pictures: dict[str, np.ndarray]) -> None:
        """Shows `(height, width, 3)` uint8 pictures in TensorBoard, by name."""
        if self._board is not None:
            for name, picture in pictures.items():
                self._board.add_image(f"figures/{name}", picture, step, dataformats="HWC")

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


class Progress:
    """A bar with rate and time left on a terminal; elsewhere one plain line a report."""

    def __init__(self, step: int, total_steps: int, batch_size: int):
        self._first, self._total, self._batch_size = step, total_steps, batch_size
        self._started = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=total_steps * batch_size,
                initial=step * batch_size,
                unit=" pictures",
                unit_scale=True,
                dynamic_ncols=True,
                mininterval=0.3,
            )

    def advance(self, steps: int) -> None:
        if self._bar is not None:
            self._bar.update(steps * self._batch_size)

    def report(self, record: dict) -> None:
        """Says how training stands after a record of metrics, or after the mean of several seeds'."""
        text = f"{record['split']} {in_words(record)}"
        if self._bar is not None:
            if record["split"] == "train":
                self._bar.set_description_str(f"epoch {record['epoch']:.1f} {text}")
            else:
                self._bar.write(f"epoch {record['epoch']:.0f}: {text}")
            return
        step = record["step"]
        done = max(1, step - self._first)
        left = (time.monotonic() - self._started) / done * (self._total - step)
        rate = f", {record['images_per_second']:.0f} pictures/s" if "images_per_second" in record else ""
        print(
            f"epoch {record['epoch']:.2f} step {step}/{self._total}: {text}{rate}, {clock(left)} left",
            flush=True,
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def in_words(record: dict) -> str:
    """`loss 0.1234 accuracy 97.50%`; of several seeds the mean, `+-` and the standard deviation."""
    loss, accuracy = f"loss {record['loss']:.4f}", f"accuracy {record['accuracy']:.2%}"
    if "seeds" in record:
        loss, accuracy = f"{loss} +- {record['loss_std']:.4f}", f"{accuracy} +- {record['accuracy_std']:.2%}"
    return f"{loss} {accuracy}"


def clock(seconds: float) -> str:
    """`95 -> "1:35"`, `4000 -> "1:06:40"`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
