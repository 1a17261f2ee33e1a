"""What a start from a trained network is worth: other classes, larger images, a ResNet trained on as attention.

    python -m benchmarks.fine_tuning --data-dir=DIR --out=OUT
    python -m benchmarks.fine_tuning --show=results/fine_tuning

The first makes four small sets of CIFAR-10, trains the networks of RUNS on them one after the other in OUT/NAME, and
keeps configurations and evaluations in OUT/kept. The same command resumes where it was interrupted. The second prints
the table of what was kept: test accuracy before the first step, where it is recorded, and at the end.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import Split
from attn_cnn_jax.errors import exits_with_messages
from attn_cnn_jax.files import replacing
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training import loop
from benchmarks.measure import table
from benchmarks.records import parse, parser, read_config, write

COLUMNS = ("run", "set", "start", "epochs", "before", "after")


class Set(NamedTuple):
    """The first images of some classes of CIFAR-10, `num_train` and `num_test` of all together, resized to `size`."""

    classes: Sequence[int]
    num_train: int
    num_test: int
    size: int = 32


SETS = {
    "five": Set((0, 2, 4, 6, 8), 25_000, 5_000),
    "other_five": Set((1, 3, 5, 7, 9), 1_000, 5_000),
    "large": Set(range(10), 3_000, 2_000, 64),
    "ten": Set(range(10), 10_000, 2_000),
}


class Training(NamedTuple):
    """A run on a set: its configuration, the run of this list (or `pretrained:NAME`) that it starts from, overrides."""

    on: str
    config: str
    epochs: int
    start: str = ""
    changes: tuple[str, ...] = ()


RESNET = ("model.depth=10", "model.width=8", "train.batch_size=50", "optimizer.schedule=cosine")
AS_ATTENTION = ("model.layers=attention", "optimizer.learning_rate=0.01", "train.log_every_steps=20")
SLOWER = ("optimizer.learning_rate=0.001",)
RUNS = {
    "five": Training("five", "cifar10_cpu:wide_heads", 5),
    "other_random": Training("other_five", "cifar10_cpu:wide_heads", 10),
    "other_tuned": Training("other_five", "cifar10_cpu:wide_heads", 10, "five"),
    "other_frozen": Training("other_five", "cifar10_cpu:wide_heads", 10, "five", ("start.freeze=encoder",)),
    "large_random": Training("large", "cifar10_cpu", 3),
    "large_tuned": Training("large", "cifar10_cpu", 3, "pretrained:cifar10", SLOWER),
    "resnet": Training("ten", "resnet18", 8, "", (*RESNET, "optimizer.learning_rate=0.1")),
    "resnet_attention": Training("ten", "resnet18", 1, "resnet", (*RESNET, *AS_ATTENTION)),
}


@exits_with_messages
def main(argv: Sequence[str] | None = None) -> int:
    options = parse(parser(__doc__), argv)
    if options.out:
        make_sets(options.out, options.data_dir or None)
        for name, training in RUNS.items():
            train(options.out, name, training)
    print(table(rows(options.show or options.out / "kept"), COLUMNS))
    return 0


def make_sets(out: Path, data_dir: str | None) -> None:
    """Writes OUT/SET.npz for those that are not there."""
    dataset = sources.load("cifar10", data_dir)
    out.mkdir(parents=True, exist_ok=True)
    for name, made in SETS.items():
        if (out / f"{name}.npz").exists():
            continue
        train = chosen(dataset.train, made, made.num_train)
        test = chosen(dataset.test, made, made.num_test)
        names = [dataset.spec.class_names[label] for label in made.classes]
        arrays = {"images": train.images, "labels": train.labels, "class_names": names}
        with replacing(out / f"{name}.npz") as file:
            np.savez(file, test_images=test.images, test_labels=test.labels, **arrays)


def chosen(split: Split, made: Set, count: int) -> Split:
    """The first `count` images of the classes of a set, with labels from 0."""
    split = split.at(np.flatnonzero(np.isin(split.labels, made.classes))[:count])
    resized = [Image.fromarray(image).resize((made.size,) * 2, Image.Resampling.BICUBIC) for image in split.images]
    return Split(np.stack([np.asarray(image) for image in resized]), np.searchsorted(made.classes, split.labels))


def configured(training: Training) -> ConfigDict:
    """The configuration of a run, but for the paths of its images and of the run that it starts from."""
    config = load_config(training.config, [f"--config.{each}" for each in training.changes])
    config.dataset.name, config.train.num_epochs, config.start.run = "npz", training.epochs, training.start
    return config


def train(out: Path, name: str, training: Training) -> None:
    """Trains or resumes a run; keeps its configuration, without paths of this machine, and its evaluations."""
    config = configured(training)
    config.dataset.update({"path": str(out / f"{training.on}.npz"), "data_dir": str(out / "data")})
    if training.start in RUNS:
        config.start.run = str(out / training.start)
    loop.run(config, out / name)
    done = read_config(out / name)
    done["dataset"]["path"], done["start"]["run"] = "", training.start
    tests = [record for record in read_metrics(out / name / "metrics.jsonl") if record["split"] == "test"]
    write(out / "kept" / name, done, tests)


def rows(kept: Path) -> list[dict]:
    """The rows of the table, of those runs that are there."""
    found = []
    for name, training in RUNS.items():
        if (kept / name).is_dir():
            first, *_, last = read_metrics(kept / name / "metrics.jsonl")
            before = f"{first['accuracy']:.1%}" if first["step"] == 0 else ""
            cells = (name, training.on, training.start or "random", last["epoch"], before, f"{last['accuracy']:.1%}")
            found.append(dict(zip(COLUMNS, cells, strict=True)))
    return found


if __name__ == "__main__":
    sys.exit(main())
