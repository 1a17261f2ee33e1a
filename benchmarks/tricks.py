"""What each change of a recipe is worth: a network of configs/cifar10_cpu.py with one thing changed, a run per seed.

    python -m benchmarks.tricks --data-dir=DIR --out=OUT [--seeds=0-2] [--table=resnet]
    python -m benchmarks.tricks --show=results/tricks [--table=resnet] [--write]

The first trains every row of one of TABLES on 45,000 training images of CIFAR-10, for EPOCHS epochs where the row names
no other number, seed by seed, in OUT/TABLE/ROW/seed_N, and keeps configurations and metrics in OUT/kept. The same
command resumes where it was interrupted. Rows are compared by accuracy on the 5,000 training images held out. The
second prints the table of what was kept; --write puts it into the documentation.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.errors import exits_with_messages
from attn_cnn_jax.runs.metrics import last_records
from benchmarks.records import DOCS, kept_runs, markdown, parse, parser, show, train, with_deviation

EPOCHS = 2
# Whole runs, all of which take fifteen minutes.
WHOLE = "train.num_epochs=12"
MIRRORED = (  # with windows: `cifar10_cpu:windows`
    "augment.border=mirrored",
    "augment.crop_padding=2",
    "optimizer.schedule=linear",
    "optimizer.bias_rate=8.0",
)
ATTENTION = {
    "the recipe, 12 epochs": (WHOLE,),
    "padded by 2 pixels": ("augment.crop_padding=2", WHOLE),
    "no crops, padded by 2 pixels, 9 epochs": (
        "augment.crop_fraction=1.0",
        "augment.crop_padding=2",
        "train.num_epochs=9",
    ),
    "BERT's blocks, 10 epochs": ("model.block=post_norm", "train.num_epochs=10"),
    "learning rate 0.007": ("optimizer.learning_rate=0.007", WHOLE),
    "weight decay of 0.02": ("optimizer.weight_decay=0.02", WHOLE),
    "momentum 0.95": ("optimizer.momentum=0.95", WHOLE),
    "labels smoothed by 0.2": ("train.label_smoothing=0.2", WHOLE),
    "one operation per image": ("augment.operations=1", WHOLE),
    "six layers of 112 channels": (
        "model.num_layers=6",
        "model.hidden_size=112",
        "model.intermediate_size=224",
        WHOLE,
    ),
    "windows of 6x6, mirrored border, linear rate, fast biases": ("model.window=6", *MIRRORED, WHOLE),
}
# A third of a whole run: crops of 24, 28, 28 and 32 pixels. Three epochs without crops take as long.
SHORT = "train.num_epochs=4"
PARTS = {
    "the recipe, 4 epochs": (SHORT,),
    "no crops, 3 epochs": ("augment.crop_fraction=1.0", "train.num_epochs=3"),
    "BERT's blocks": (SHORT, "model.block=post_norm"),
    "the paper's start": (SHORT, "model.init=paper"),
    "labels not smoothed": (SHORT, "train.label_smoothing=0.0"),
}
WIDE_HEADS = {
    "the recipe": (),
    "learning rate 0.002": ("optimizer.learning_rate=0.002",),
    "learning rate 0.008": ("optimizer.learning_rate=0.008",),
    "learning rate 0.016": ("optimizer.learning_rate=0.016",),
    "Adam at 0.003 for Muon": ("optimizer.name=adam", "optimizer.learning_rate=0.003"),
    "weight decay of 0.0001": ("optimizer.weight_decay=0.0001",),
    "no crop": ("augment.crop_padding=0",),
    "start on a grid": ("model.init=grid",),
    "start as the identity": ("model.init=identity",),
    "labels smoothed by 0.1": ("train.label_smoothing=0.1",),
    "heads of 32 channels": ("model.head_size=32",),
    "one operation per image": ("augment.operations=1",),
}
# As many learning rates for each optimizer, a factor of two apart.
OPTIMIZERS = {
    f"{name} at {rate}": (SHORT, f"optimizer.name={name.lower()}", f"optimizer.learning_rate={rate}", *more)
    for name, rates, more in (
        ("Muon", (0.004, 0.002, 0.008, 0.016), ()),
        ("Adam", (0.0008, 0.0015, 0.003, 0.006), ()),
        ("SGD", (0.025, 0.05, 0.1, 0.2), ("optimizer.weight_decay=0.0001",)),
    )
    for rate in rates
}
NO_CROP = ("augment.crop_padding=0",)
CROP_OF_4 = ("augment.crop_padding=4", "train.label_smoothing=0.0")
SMALL_HEADS = {
    "small heads": (),
    "crop of 4, labels not smoothed": CROP_OF_4,
    "the same, learning rate 0.006": (*CROP_OF_4, "optimizer.learning_rate=0.006"),
    "the same, start as an impulse": (*CROP_OF_4, "model.init=impulse"),
    "no crop": NO_CROP,
    "no crop, six layers of 120 channels": (
        *NO_CROP,
        "model.num_layers=6",
        "model.hidden_size=120",
        "model.intermediate_size=240",
    ),
    "no crop, 176 channels, as many between linear maps": (
        *NO_CROP,
        "model.hidden_size=176",
        "model.intermediate_size=176",
    ),
    "no crop, 16 heads of 9 channels": (*NO_CROP, "model.num_heads=16", "model.head_size=9"),
    "no crop, batches of 25": (*NO_CROP, "train.batch_size=25"),
    "8 epochs": ("train.num_epochs=8",),
}
# Learning rates were searched for at 12 channels, widths with the best of them, then images in whole runs.
OLD_IMAGES = ("augment.crop_padding=4", "train.label_smoothing=0.0")
NARROW = ("model.width=12", *OLD_IMAGES)
LARGER = (*NARROW, "train.batch_size=100")
SGD = (*LARGER, "optimizer.name=sgd", "optimizer.weight_decay=0.0005")
RESNET = {"the recipe, 12 channels": NARROW, "batches of 100": LARGER} | {
    f"batches of 100, {optimizer} {rate}": (*settings, f"optimizer.learning_rate={rate}")
    for optimizer, settings, rates in (
        ("learning rate", LARGER, (0.004, 0.01, 0.02, 0.08)),
        ("SGD at", SGD, (0.05, 0.1, 0.2)),
    )
    for rate in rates
}
# Each in a third of the fifteen minutes: images per second, in turns on two cores, were 507, 1,285, 749 and 306.
WIDTHS = {
    "16 channels, 3 epochs": (*OLD_IMAGES, "train.num_epochs=3"),
    "8 channels, 7 epochs": (*OLD_IMAGES, "model.width=8", "train.num_epochs=7"),
    "12 channels, 4 epochs": (*NARROW, "train.num_epochs=4"),
    "20 channels, 2 epochs": (*OLD_IMAGES, "model.width=20", "train.num_epochs=2"),
    "16 channels, 3 epochs, crop of 2, labels smoothed": (
        "train.num_epochs=3",
        "augment.crop_padding=2",
        "train.label_smoothing=0.1",
    ),
}
RESNET_WHOLE = {
    "padded by 2 pixels, 9 epochs": ("train.num_epochs=9",),
    "growing crops, 12 epochs": ("augment.crop_padding=0", "augment.crop_fraction=0.75", WHOLE),
    "mirrored border, linear rate, fast biases, 9 epochs": (*MIRRORED, "train.num_epochs=9"),
}
# The network of configs/cifar10_cpu.py, and what is changed; the first row is what others are compared with.
TABLES = {
    "attention": ("attention", ATTENTION),
    "parts": ("attention", PARTS),
    "wide_heads": ("wide_heads", WIDE_HEADS),
    "optimizers": ("attention", OPTIMIZERS),
    "small_heads": ("small_heads", SMALL_HEADS),
    "resnet": ("resnet", RESNET),
    "widths": ("resnet", WIDTHS),
    "resnet_whole": ("resnet", RESNET_WHOLE),
}
COLUMNS = ("change", "validation accuracy (%)", "difference", "loss (nats)", "seeds")
PAGE = DOCS / "measurements_recipe.md"


@exits_with_messages
def main(argv: Sequence[str] | None = None) -> int:
    described = parser(__doc__)
    described.add_argument("--table", choices=TABLES, default="attention")
    options = parse(described, argv)
    if options.out:
        for seed in options.seeds:
            for change in TABLES[options.table][1]:
                place = Path(options.table, name_of(change), f"seed_{seed}")
                train(options.out, place, configured(options.table, change, seed, options.data_dir))
    found = rows(options.show or options.out / "kept", options.table)
    show(markdown(found, COLUMNS), PAGE, f"changes of {options.table}", write=options.write)
    return 0


def name_of(change: str) -> str:
    """The name of a row's folder."""
    return "".join(letter if letter.isalnum() else "_" for letter in change.lower())


def configured(table: str, change: str, seed: int, data_dir: str = "") -> ConfigDict:
    """The configuration of a run."""
    network, changes = TABLES[table]
    settings = (f"train.num_epochs={EPOCHS}", *changes[change], f"seed={seed}", "dataset.num_validation=5000")
    config = load_config(f"cifar10_cpu:{network}", [f"--config.{each}" for each in settings])
    config.dataset.data_dir = data_dir
    config.train.update({"eval_every_epochs": config.train.num_epochs, "logger": "none"})
    return config


def rows(kept: Path, table: str) -> list[dict[str, Any]]:
    """The rows of the table: mean and standard deviation over seeds, differences over the seeds of both."""
    found = {}
    for change in TABLES[table][1]:
        runs = kept_runs(kept / table / name_of(change))
        found[change] = {run.name: last_records(run)["validation"] for run in runs}
    first = next(iter(found))
    rows = []
    for change, by_seed in found.items():
        if by_seed:
            both = sorted(by_seed.keys() & found[first])
            differences = [100 * (by_seed[seed]["accuracy"] - found[first][seed]["accuracy"]) for seed in both]
            sign = "" if statistics.mean(differences) < 0 else "+"
            difference = "" if change == first else sign + with_deviation(differences)
            reached = with_deviation([100 * record["accuracy"] for record in by_seed.values()])
            loss = f"{statistics.mean(record['loss'] for record in by_seed.values()):.3f}"
            cells = (change, reached, difference, loss, len(by_seed))
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


if __name__ == "__main__":
    sys.exit(main())
