"""What four trainings reach on CIFAR-10 in fifteen minutes of two CPU cores, with the same pictures and augmentation.

    python -m benchmarks.fifteen_minutes --data-dir=DIR --out=OUT [--seeds=0-2] [--only pytorch]
    python -m benchmarks.fifteen_minutes --show=results/fifteen_minutes [--write]

The network of configs/cifar10_cpu.py, the ResNet of that file, also with SGD, and the same attention network in plain
PyTorch (train_pytorch.py); each has as many epochs as fit. The first keeps configurations and metrics in OUT/kept;
finished runs are left as they are, begun ones of ours go on. The second prints the table of what was kept; --write puts
it into the documentation.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import complete
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import says_errors
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training import loop
from benchmarks.kept import DATA, keep, markdown, minutes, parse, parser, put, with_deviation, write_run
from benchmarks.tricks import PAGE, RESNET

SGD = (*RESNET["batches of 100, SGD at 0.1"], "train.num_epochs=11")
ADAM_DECAY = "optimizer.weight_decay=0.0001"  # of what Adam trains in PyTorch; Muon's matrices have none
CONTENDERS = {
    "attention": ("cifar10_cpu", (), "attention, this trainer"),
    "resnet": ("cifar10_cpu:resnet", (), "ResNet-10, this trainer"),
    "resnet_sgd": ("cifar10_cpu:resnet", SGD, "the same with SGD"),
    "pytorch": ("cifar10_cpu", ("train.num_epochs=9", ADAM_DECAY), "attention, plain PyTorch"),
}
COLUMNS = ("network", "parameters", "FLOPs per picture, full count", "epochs", "minutes", "test accuracy (%)", "seeds")


@says_errors
def main(argv: Sequence[str] | None = None) -> int:
    described = parser(__doc__)
    described.add_argument("--only", choices=CONTENDERS, nargs="+", default=list(CONTENDERS))
    options = parse(described, argv)
    if options.out:
        for seed in options.seeds:
            for name in options.only:
                train(name, seed, options.data_dir, options.out)
    text = markdown(rows(options.show or options.out / "kept"), COLUMNS)
    print(text, end="")
    if options.write:
        put(PAGE, "contenders", text)
    return 0


def configured(name: str, seed: int) -> ConfigDict:
    """Returns the configuration of a contender."""
    config, changes, _ = CONTENDERS[name]
    return load_config(config, [f"--config.{each}" for each in (*changes, f"seed={seed}")])


def train(name: str, seed: int, data_dir: str | None, out: Path) -> None:
    """Trains a contender and keeps what it left, unless that was done."""
    run, place = (folder / name / f"seed_{seed}" for folder in (out, out / "kept"))
    if place.exists():
        return
    config = configured(name, seed)
    if name == "pytorch":
        from benchmarks import train_pytorch

        records = []
        for record in train_pytorch.train(complete(config), sources.load("cifar10", data_dir)):
            print(json.dumps(record), flush=True)
            records.append(record)
        write_run(place, config, records, DATA)
    else:
        config.dataset.data_dir = data_dir or ""
        loop.run(config, run)
        keep(run, place)


def rows(kept: Path) -> list[dict[str, Any]]:
    """Returns the rows of the table: medians of epochs and minutes, mean and standard deviation of accuracies."""
    rows = []
    for name, (_, _, title) in CONTENDERS.items():
        records = [read_metrics(run / "metrics.jsonl") for run in sorted((kept / name).glob("seed_*"))]
        if not records:
            continue
        model = complete(configured(name, 0)).model
        rows.append(
            {
                "network": title,
                "parameters": f"{count_parameters(model):,}",
                "FLOPs per picture, full count": short(sum(count_flops(model))),
                "epochs": f"{records[0][-1]['epoch']:g}",
                "minutes": f"{statistics.median(map(minutes, records)):.1f}",
                "test accuracy (%)": with_deviation([100 * of_run[-1]["accuracy"] for of_run in records]),
                "seeds": len(records),
            }
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
