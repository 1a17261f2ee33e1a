"""What a start from a trained network is worth: other classes, larger pictures, a ResNet trained on as attention.

    python -m benchmarks.fine_tuning --data-dir=DIR --out=OUT
    python -m benchmarks.fine_tuning --show=results/fine_tuning

The first makes four small sets of CIFAR-10, trains the networks of RUNS on them one after the other in OUT/NAME, and
keeps configurations and evaluations in OUT/kept. The same command again goes on where it was interrupted. The second
prints the table of what was kept: test accuracy before the first step, where it is recorded, and at the end.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import says_errors
from attn_cnn_jax.files import replacing
from attn_cnn_jax.runs.directory import read_config
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training import loop
from benchmarks.kept import write_run
from benchmarks.measure import table

COLUMNS = ("run", "set", "start", "epochs", "before", "after")


class Set(NamedTuple):
    """The first pictures of some classes of CIFAR-10, `num_train` and `num_test` of all together, resized to `size`."""

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
    overrides: tuple[str, ...] = ()


RESNET = (
    "--config.model.depth=10",
    "--config.model.width=8",
    "--config.train.batch_size=50",
    "--config.optimizer.schedule=cosine",
)
RUNS = {
    "five": Training("five", "cifar10_cpu", 5),
    "other_random": Training("other_five", "cifar10_cpu", 10),
    "other_tuned": Training("other_five", "cifar10_cpu", 10, "five"),
    "other_frozen": Training("other_five", "cifar10_cpu", 10, "five", ("--config.start.freeze=encoder",)),
    "large_random": Training("large", "cifar10_cpu", 3),
    "large_tuned": Training(
        "large", "cifar10_cpu", 3, "pretrained:cifar10", ("--config.optimizer.learning_rate=0.001",)
    ),
    "resnet": Training("ten", "resnet18", 8, "", (*RESNET, "--config.optimizer.learning_rate=0.1")),
    "resnet_attention": Training(
        "ten",
        "resnet18",
        1,
        "resnet",
        (
            *RESNET,
            "--config.model.layers=attention",
            "--config.optimizer.learning_rate=0.01",
            "--config.train.log_every_steps=20",
        ),
    ),
}


@says_errors
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", metavar="DIR", help="where CIFAR-10 is prepared")
    parser.add_argument("--out", type=Path, metavar="OUT", help="of sets and run directories")
    parser.add_argument("--show", type=Path, metavar="DIR", help="print the table of what was kept there")
    options = parser.parse_args(argv)
    if bool(options.show) == bool(options.out):
        parser.error("give --out=OUT, or --show=DIR")
    if options.out:
        make_sets(options.out, options.data_dir)
        for name, training in RUNS.items():
            train(options.out, training, options.out / name)
            keep(options.out / name, options.out / "kept" / name)
    print(table(rows(options.show or options.out / "kept"), COLUMNS))
    return 0


def make_sets(out: Path, data_dir: str | None) -> None:
    """Writes OUT/SET.npz for those that are not there."""
    missing = [name for name in SETS if not (out / f"{name}.npz").exists()]
    if not missing:
        return
    dataset = sources.load("cifar10", data_dir)
    out.mkdir(parents=True, exist_ok=True)
    for name in missing:
        made = SETS[name]
        train = chosen(dataset.train, made, made.num_train)
        test = chosen(dataset.test, made, made.num_test)
        names = [dataset.class_names[label] for label in made.classes]
        arrays = {"images": train.images, "labels": train.labels, "class_names": names}
        with replacing(out / f"{name}.npz") as file:
            np.savez(file, test_images=test.images, test_labels=test.labels, **arrays)


def chosen(split: sources.Split, made: Set, count: int) -> sources.Split:
    """Returns the first `count` pictures of the classes of a set, labels numbered anew."""
    split = split.at(np.flatnonzero(np.isin(split.labels, made.classes))[:count])
    if made.size == 32:
        images = split.images
    else:
        resized = [Image.fromarray(image).resize((made.size,) * 2, Image.Resampling.BICUBIC) for image in split.images]
        images = np.stack([np.asarray(image) for image in resized])
    return sources.Split(images, np.searchsorted(made.classes, split.labels))


def configured(training: Training) -> ConfigDict:
    """Returns the configuration of a run, but for the paths of its pictures and of the run that it starts from."""
    config = load_config(training.config, list(training.overrides))
    config.dataset.name, config.train.num_epochs, config.start.run = "npz", training.epochs, training.start
    return config


def train(out: Path, training: Training, workdir: Path) -> None:
    """Trains a run, or goes on with it; a finished one is left as it is."""
    config = configured(training)
    config.dataset.update({"path": str(out / f"{training.on}.npz"), "data_dir": str(out / "data")})
    if training.start in RUNS:
        config.start.run = str(out / training.start)
    loop.run(config, workdir)


def keep(run: Path, place: Path) -> None:
    """Copies configuration, without paths of this machine, and evaluations of a run."""
    config = read_config(run)
    assert config is not None
    config.dataset.path = ""
    if not config.start.run.startswith("pretrained:"):
        config.start.run = Path(config.start.run).name
    tests = [record for record in read_metrics(run / "metrics.jsonl") if record["split"] == "test"]
    write_run(place, config, tests)


def rows(kept: Path) -> list[dict]:
    """Returns the rows of the table, those runs that are there."""
    found = []
    for name, training in RUNS.items():
        if (kept / name).is_dir():
            first, *_, last = read_metrics(kept / name / "metrics.jsonl")
            found.append(
                {
                    "run": name,
                    "set": training.on,
                    "start": training.start or "random",
                    "epochs": last["epoch"],
                    "before": f"{first['accuracy']:.1%}" if first["step"] == 0 else "",
                    "after": f"{last['accuracy']:.1%}",
                }
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
