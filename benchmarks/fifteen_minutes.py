"""What trainings reach on CIFAR-10 in fifteen minutes of two CPU cores, with the same images.

    python -m benchmarks.fifteen_minutes --data-dir=DIR --out=OUT [--seeds=0-2] [--only pytorch]
    python -m benchmarks.fifteen_minutes --show=results/fifteen_minutes [--rates] [--write]

Networks of configs/cifar10_cpu.py, its ResNet also with SGD, and wide heads also in plain PyTorch (train_pytorch.py);
each has as many epochs as fit. The first keeps configurations, metrics and the accuracy with mirrored images in
OUT/kept; finished runs are left as they are, interrupted ones of ours resume. The second prints the table of what was
kept; --write puts it into the documentation. Minutes are epochs by the rates that --rates measures in turns, in one
process on an idle machine, and keeps beside the runs: the runs themselves may share the machine with other work.
"""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.analysis.test_images import load_dataset
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import complete
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import Dataset, Split
from attn_cnn_jax.errors import exits_with_messages
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training.mesh import data_mesh
from attn_cnn_jax.training.step import crop_size
from benchmarks import records
from benchmarks.measure import turns, write_json
from benchmarks.networks import SPEC, random_images, training
from benchmarks.records import kept_runs, markdown, parse, parser, show, with_deviation, write
from benchmarks.tricks import RESNET

SGD = (*RESNET["batches of 100, SGD at 0.1"], "train.num_epochs=11")
ADAM_DECAY = "optimizer.weight_decay=0.0001"  # of what Adam trains in PyTorch; Muon's matrices have none
CONTENDERS = {
    "attention": ("cifar10_cpu", (), "attention, this trainer"),
    "windows": ("cifar10_cpu:windows", (), "attention, windows that overlap"),
    "wide_heads": ("cifar10_cpu:wide_heads", (), "wide heads, this trainer"),
    "resnet": ("cifar10_cpu:resnet", (), "ResNet-10 of 16 channels, this trainer"),
    "resnet_sgd": ("cifar10_cpu:resnet", SGD, "ResNet-10 of 12 channels, SGD"),
    "pytorch": ("cifar10_cpu:wide_heads", ("train.num_epochs=9", ADAM_DECAY), "wide heads, plain PyTorch"),
}
PAGE = records.DOCS / "recipe.md"
RATES = "rates.json"
IMAGES = 1_500  # of random noise, in each turn
COLUMNS = ("network", "parameters", "FLOPs per image, full count", "epochs", "minutes", "test accuracy (%)")
COLUMNS += ("with mirrored images (%)", "seeds")
MIRRORED = "mirrored.json"


@exits_with_messages
def main(argv: Sequence[str] | None = None) -> int:
    described = parser(__doc__)
    described.add_argument("--only", choices=CONTENDERS, nargs="+", default=list(CONTENDERS))
    described.add_argument("--rates", action="store_true", help="with --show: measure images per second anew")
    options = parse(described, argv)
    if options.rates and options.out:
        described.error("--rates goes with --show")
    if options.rates:
        write_json(options.show / RATES, {"pictures_per_second": measured(repeats=5)})
    if options.out:
        for seed in options.seeds:
            for name in options.only:
                train(name, seed, options.data_dir, options.out)
    show(markdown(rows(options.show or options.out / "kept"), COLUMNS), PAGE, "contenders", write=options.write)
    return 0


def configured(name: str, seed: int) -> ConfigDict:
    """The configuration of a contender."""
    config, changes, _ = CONTENDERS[name]
    return load_config(config, [f"--config.{each}" for each in (*changes, f"seed={seed}")])


def train(name: str, seed: int, data_dir: str, out: Path) -> None:
    """Trains a contender and keeps its records, unless that was done."""
    place = Path(name, f"seed_{seed}")
    kept = out / "kept" / place
    if (kept / ("metrics.jsonl" if name == "pytorch" else MIRRORED)).exists():
        return
    config = configured(name, seed)
    if name == "pytorch":
        from benchmarks import train_pytorch

        found = []
        for record in train_pytorch.train(complete(config), sources.load("cifar10", data_dir or None)):
            print(json.dumps(record), flush=True)
            found.append(record)
        write(kept, config.to_dict(), found)
    else:
        config.dataset.data_dir = data_dir
        records.train(out, place, config)
        run = load_run(out / place)
        found = run.evaluate(*load_dataset(run).test, mirrored=True)
        write_atomically(kept / MIRRORED, json.dumps({"accuracy": found.accuracy}) + "\n")


def measured(repeats: int) -> dict[str, float]:
    """Images per second that each contender trains at, over all sizes of crops: medians of turns in one process."""
    configs = {name: complete(configured(name, 0)) for name in CONTENDERS}
    sizes, steps = {}, {}
    for name, config in configs.items():
        sizes[name] = Counter(crop_size(config, epoch) for epoch in range(config.train.num_epochs))
        for size in sizes[name]:
            cropped = config.copy_and_resolve_references()
            cropped.model.image_shape = (*size, config.model.image_shape[2])
            steps[f"{name} {size}"] = an_epoch_of_noise(name, cropped)
    seconds = {of: statistics.median(times) for of, times in turns(steps, repeats).items()}
    spent = {name: sum(n * seconds[f"{name} {size}"] for size, n in counts.items()) for name, counts in sizes.items()}
    return {name: IMAGES * config.train.num_epochs / spent[name] for name, config in configs.items()}


def an_epoch_of_noise(name: str, config: ConfigDict) -> Callable[[], Any]:
    """A function that trains on `IMAGES` random images."""
    mesh = data_mesh(jax.devices())
    images = random_images(config, IMAGES, mesh)
    if name != "pytorch":
        train_steps = training(config, mesh, images)
        return lambda: train_steps(IMAGES // config.train.batch_size)

    from benchmarks import train_pytorch

    config.train.num_epochs = 1_000_000  # as many as are asked for
    noise = Split(*jax.device_get(images))
    one = noise.at([0])  # evaluated after each epoch
    epochs = train_pytorch.train(config, Dataset(noise, one, SPEC))
    return lambda: (next(epochs), next(epochs))


def rows(kept: Path) -> list[dict[str, Any]]:
    """The rows of the table: mean and standard deviation of accuracies; minutes and mirrored where measured."""
    path, rows = kept / RATES, []
    rates = json.loads(path.read_text())["pictures_per_second"] if path.exists() else {}
    for name, (_, _, title) in CONTENDERS.items():
        runs = kept_runs(kept / name)
        found = [read_metrics(run / "metrics.jsonl") for run in runs]
        if not found:
            continue
        model, epochs = complete(configured(name, 0)).model, found[0][-1]["epoch"]
        minutes = f"{50_000 * epochs / rates[name] / 60:.1f}" if name in rates else ""
        reached = with_deviation([100 * of_run[-1]["accuracy"] for of_run in found])
        twice = [100 * json.loads(path.read_text())["accuracy"] for run in runs for path in run.glob(MIRRORED)]
        mirrored = with_deviation(twice) if len(twice) == len(runs) else ""
        cells = [title, f"{count_parameters(model):,}", short(count_flops(model).full), f"{epochs:g}", minutes]
        rows.append(dict(zip(COLUMNS, [*cells, reached, mirrored, len(found)], strict=True)))
    return rows


if __name__ == "__main__":
    sys.exit(main())
