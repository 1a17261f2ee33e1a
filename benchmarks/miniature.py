"""Table 1 in miniature: seven small networks trained alike, seed by seed, and where their heads look.

    python -m benchmarks.miniature --data-dir=DIR --out=OUT [--seeds=0-2] [--only quadratic resnet_16x16]
    python -m benchmarks.miniature --data-dir=DIR --out=OUT --seeds=0 --only quadratic_300 resnet_300
    python -m benchmarks.miniature --data-dir=DIR --out=OUT --pruned
    python -m benchmarks.miniature --data-dir=DIR --out=OUT --convolutions
    python -m benchmarks.miniature --show=results/miniature [--write]

The first trains networks of configs/miniature.py, the seven of 8x8 pixels unless others are named, in
OUT/NETWORK/seed_N, and keeps configurations, metrics and head statistics of every checkpoint in OUT/kept. The same
command resumes where it was interrupted. Names with _300 train for the paper's 300 epochs. --pruned trains the
generalised networks on without their degenerate heads, where they have any, and as a control the same networks for as
long with all heads. --convolutions adds how convolutional those of the first seed are: accuracy on all test images with
their attention layers replaced by KxK convolutions. The last prints the tables of what was kept; --write puts them and
their figures into the documentation.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.analysis.convolution import measure_run
from attn_cnn_jax.analysis.figures import curves
from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.analysis.heads import run_statistics
from attn_cnn_jax.analysis.test_images import grid
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import complete
from attn_cnn_jax.errors import exits_with_messages
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.models.pruning import degenerate_heads
from attn_cnn_jax.runs.checkpoints import steps_in
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.runs.positions import rounded
from attn_cnn_jax.training import loop
from benchmarks import locality
from benchmarks.records import (
    DOCS,
    accuracies,
    kept_runs,
    markdown,
    minutes,
    parse,
    parser,
    put_figure,
    read_config,
    show,
    train,
    with_deviation,
    write,
)

NETWORKS = ("quadratic", "resnet", "learned_rel", "quadratic_generalized", "many_heads", "learned_rel_content")
NETWORKS += ("absolute",)
LARGER = tuple(f"{network}_16x16" for network in NETWORKS)
LONG = ("quadratic_300", "learned_rel_300", "learned_rel_content_300", "resnet_300")  # the paper's Figure 2
RECIPES = {"quadratic_muon_300": "windows", "resnet_muon_300": "resnet"}  # of configs/cifar10_cpu.py
ALL = NETWORKS + LARGER + LONG + tuple(RECIPES)
KERNEL_SIZES = (1, 3, 5, 7)
PAGE = DOCS / "measurements_miniature.md"
TEST_IMAGES = 10_000
IMAGES = 20  # over which attention that depends on content is averaged
# The paper's figure 13: generalised networks without degenerate heads, trained on, and a control that has them.
FIRST, PRUNED, CONTROL = "quadratic_generalized", "pruned", "trained_on"
EPOCHS = 2
ACCURACY = ("network", "parameters", "FLOPs per image, full count", "seeds", "test accuracy (%)")
ACCURACY += ("after an epoch (%)", "minutes")
PRUNING = ("seed", "degenerate heads", "with them (%)", "right after (%)", f"{EPOCHS} epochs later (%)")
PRUNING += (f"with them, {EPOCHS} epochs later (%)",)
CONVOLUTIONS = ("network", "seed", "itself", *(f"K = {size}" for size in KERNEL_SIZES))


@exits_with_messages
def main(argv: Sequence[str] | None = None) -> int:
    described = parser(__doc__)
    described.add_argument("--only", choices=ALL, nargs="+", default=NETWORKS, metavar="NETWORK")
    described.add_argument("--pruned", action="store_true", help="train on without degenerate heads instead")
    described.add_argument("--convolutions", action="store_true", help="measure convolutions instead of training")
    options = parse(described, argv)
    if options.out and options.convolutions:
        keep_convolutions(options.out, options.only, options.seeds[0], options.data_dir)
    elif options.out and options.pruned:
        for seed in options.seeds:
            train_on(options.out, configured(FIRST, seed, options.data_dir))
    elif options.out:
        for seed in options.seeds:
            for network in options.only:
                place = Path(network, f"seed_{seed}")
                train(options.out, place, configured(network, seed, options.data_dir))
                keep_heads(options.out / place, options.out / "kept" / place)
    kept = options.show or options.out / "kept"
    show(tables(kept), PAGE, "results", write=options.write)
    if options.write:
        for networks, size in ((NETWORKS, ""), (LARGER, "_16x16"), (LONG, "_300")):
            if trained := [network for network in networks if kept_runs(kept / network)]:
                groups = [kept_runs(kept / network) for network in trained]
                names = [network.removesuffix(size) for network in trained]
                put_figure(curves.draw(groups, names), DOCS / f"miniature{size}.png")
                put_figure(locality.draw(kept, trained), DOCS / f"locality{size}.png")
    return 0


def tables(kept: Path) -> str:
    """All tables in Markdown."""
    parts = [
        (accuracy_rows(kept), ACCURACY),
        (locality.rows(kept, ALL), locality.COLUMNS),
        (pruning_rows(kept), PRUNING),
        (convolution_rows(kept), CONVOLUTIONS),
    ]
    return "\n".join(markdown(rows, columns) for rows, columns in parts if rows)


def configured(network: str, seed: int, data_dir: str = "") -> ConfigDict:
    """The configuration of a run."""
    name = network.removesuffix("_300").removesuffix("_muon")
    config = load_config(f"miniature:{name}", [f"--config.seed={seed}"])
    config.dataset.data_dir = data_dir
    if network in RECIPES:
        recipe = load_config(f"cifar10_cpu:{RECIPES[network]}")
        config.update({"optimizer": recipe.optimizer, "augment": recipe.augment})
        config.train.label_smoothing = recipe.train.label_smoothing
        if name != "resnet":
            config.model.update({key: recipe.model[key] for key in ("block", "init", "window")})
    if network.endswith("_300"):
        config.train.update({"num_epochs": 300, "log_every_steps": locality.STEPS})
        config.train.matmul_precision = "highest"  # also on GPUs
        config.checkpoint.update({"every_epochs": 10, "keep_last": 30})
    return config


def keep_heads(run: Path, place: Path) -> None:
    """Keeps head statistics of the checkpoints of a run."""
    if read_config(run)["model"]["name"] == "attention":
        records = []
        for step in reversed(steps_in(run)):
            found = run_statistics(load_run(run, step), num_images=IMAGES)
            layers = [{name: rounded(getattr(layer, name), 4) for name in locality.PANELS} for layer in found]
            records.append({"step": step, "layers": layers})
        write_atomically(place / "heads.jsonl", "".join(json.dumps(record) + "\n" for record in records))


def train_on(out: Path, config: ConfigDict) -> None:
    """Trains a network of `out` on without its degenerate heads, and with them; nothing where it has none."""
    first = f"{FIRST}/seed_{config.seed}"
    trained = load_run(out / first)
    if not degenerate_heads(trained.model, grid(trained)):
        return
    config.optimizer.learning_rate = 0.01  # as in configs/quadratic_generalized_pruned.py
    config.train.num_epochs = EPOCHS
    for name, prune in ((PRUNED, True), (CONTROL, False)):
        place = Path(name, f"seed_{config.seed}")
        config.start.update({"run": str(out / first), "prune": prune})
        loop.run(config, out / place)
        done = load_run(out / place).config.to_dict()  # with the heads that were pruned
        done["start"]["run"] = first
        write(out / "kept" / place, done, read_metrics(out / place / "metrics.jsonl"))


def pruning_rows(kept: Path) -> list[dict[str, Any]]:
    """Test accuracies of each seed whose network had degenerate heads."""
    found = []
    for place in kept_runs(kept / PRUNED):
        config, control = read_config(place), kept / CONTROL / place.name
        heads = "; ".join(f"{head} of layer {layer}" for layer, head in config["start"]["heads"])
        (*_, before), (after, *_, later) = accuracies(kept / FIRST / place.name), accuracies(place)
        numbers = [before, after, later, *(accuracies(control)[-1:] if control.exists() else [])]
        cells = [config["seed"], heads, *(f"{number:.1f}" for number in numbers)]
        found.append(dict(zip(PRUNING, cells, strict=False)))
    return found


def keep_convolutions(out: Path, networks: Sequence[str], seed: int, data_dir: str) -> None:
    """Measures the networks of one seed with all layers replaced; those that are kept are left out."""
    for network in networks:
        place = out / "kept" / network / f"seed_{seed}"
        run = load_run(out / network / f"seed_{seed}")
        if run.config.model.name != "attention" or (place / "convolutions.json").exists():
            continue
        images = {"num_images": IMAGES, "test_images": TEST_IMAGES, "data_dir": data_dir}
        original, results = measure_run(run, KERNEL_SIZES, **images)
        replaced = {size.kernel_size: {kind: of.tolist() for kind, of in size.accuracy.items()} for size in results}
        write_atomically(place / "convolutions.json", json.dumps({"itself": original, "replaced": replaced}) + "\n")


def accuracy_rows(kept: Path) -> list[dict[str, Any]]:
    """The miniature of Table 1: mean and standard deviation over seeds."""
    rows = []
    for network in ALL:
        model = complete(configured(network, 0)).model
        if not (runs := kept_runs(kept / network)):
            continue
        tests = [accuracies(run) for run in runs]
        taken = [minutes(read_metrics(run / "metrics.jsonl")) for run in runs]
        cells = [f"`{network}`", f"{count_parameters(model):,}", short(count_flops(model).full), len(runs)]
        cells += [with_deviation([of_run[-1] for of_run in tests]), with_deviation([of_run[0] for of_run in tests])]
        rows.append(dict(zip(ACCURACY, [*cells, f"{statistics.median(taken):.1f}"], strict=True)))
    return rows


def convolution_rows(kept: Path) -> list[dict[str, Any]]:
    """Test accuracies (%) with all attention layers replaced by convolutions with zeros beyond the border."""
    rows = []
    for network in ALL:
        for path in sorted((kept / network).glob("seed_*/convolutions.json")):
            found = json.loads(path.read_text(encoding="utf-8"))
            cells = {f"K = {size}": f"{100 * kinds['zeros'][-1]:.1f}" for size, kinds in found["replaced"].items()}
            seed = path.parent.name.removeprefix("seed_")
            rows.append({"network": f"`{network}`", "seed": seed, "itself": f"{100 * found['itself']:.1f}", **cells})
    return rows


if __name__ == "__main__":
    sys.exit(main())
