"""Heads that networks need and heads that they can lose: convolutions of a ResNet by layer, pruning in two orders.

    python -m benchmarks.fewer_heads RUN --out=results/fewer_heads [--images=N] [--data-dir=DIR]
    python -m benchmarks.fewer_heads --show=results/fewer_heads [--write]

Of a ResNet: how many heads each layer's kernel needs at 0, 1 and 5% (`theorem.heads_needed`), and the least error of
one head fewer than shifts, in a new network of full width and in the run. Of attention by positions alone: test
accuracy after heads are removed one by one, in the order of entropy, most uniform first, which is what pruning goes by
for most encodings; the same where value maps of heads that stay take over, by least squares, what those removed did;
and in the order of what the layer loses then.
"""

import dataclasses
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from attn_cnn_jax.analysis import test_images
from attn_cnn_jax.analysis.heads import layer_statistics
from attn_cnn_jax.config import create_model
from attn_cnn_jax.errors import exits_with_messages
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.models.attention.shifts import kernel_shifts
from attn_cnn_jax.models.initialisation import set_values
from attn_cnn_jax.options import WIDTH
from attn_cnn_jax.runs import metrics
from attn_cnn_jax.runs.environment import describe
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.theorem import heads_needed
from benchmarks.records import DOCS, RESULTS, markdown, parse, parser, show

PAGE = DOCS / "theorem.md"
TOLERANCES = (0.0, 0.01, 0.05)
Layers = list[tuple[np.ndarray, np.ndarray]]  # attention `(h, q p)` and value maps `(h, d o)`


@exits_with_messages
def main(argv: list[str] | None = None) -> int:
    described = parser(__doc__)
    described.add_argument("run", nargs="?")
    described.add_argument("--images", type=int, help="test images; all by default")
    options = parse(described, argv)
    if options.out:
        run = load_run(options.run)
        is_resnet = run.config.model.name == "resnet"
        rows = needed(run) if is_resnet else pruned(run, options.images, options.data_dir or None)
        about: dict[str, Any] = {"data": run.config.dataset.name, "images": options.images}
        if is_resnet:
            about |= metrics.last_records(Path(options.run))["test"]
        record = {**about, "machine": describe(), "rows": rows}
        name = f"resnet{run.config.model.depth}" if is_resnet else options.run.removeprefix("pretrained:")
        options.out.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out / f"{name}.json", json.dumps(record, indent=1) + "\n")
    for name, text in tables(options.show or options.out).items():
        show(text, PAGE, name, write=options.write)
    return 0


def tables(folder: Path = RESULTS / "fewer_heads") -> dict[str, str]:
    """The kept tables by their names in the documentation."""
    rows = {file.stem: json.loads(file.read_text())["rows"] for file in sorted(folder.glob("*.json"))}
    return {f"heads of {name}": markdown(kept, list(kept[0])) for name, kept in rows.items()}


def needed(run: Run) -> list[dict]:
    """A row per layer of a ResNet, new and of full width beside trained."""
    model = run.config.copy_and_resolve_references().model
    model.width = WIDTH
    networks = {f"new, width {WIDTH}": create_model(model, rngs=nnx.Rngs(0))}
    networks[f"trained, width {run.config.model.width}"] = run.model
    rows = [{"layer": name} for name, _ in kernels(run.model)]
    for network, model in networks.items():
        for row, (_, kernel) in zip(rows, kernels(model), strict=True):
            found = [heads_needed(kernel, tolerance) for tolerance in TOLERANCES]
            row[f"{network}: heads at 0, 1, 5%"] = ", ".join(str(heads.enough) for heads in found)
            row[f"{network}: least error of 8"] = f"{found[0].error[8]:.0%}"
    return rows


def kernels(model: Any) -> list[tuple[str, np.ndarray]]:
    """Name and kernel of every convolution with more than one shift."""
    layers = [(".".join(map(str, path)), m) for path, m in nnx.iter_modules(model) if isinstance(m, nnx.Conv)]
    found = [(name, np.asarray(layer.kernel[...])) for name, layer in layers]
    return [(name, kernel) for name, kernel in sorted(found) if math.prod(kernel.shape[:2]) > 1]


def pruned(run: Run, num_images: int | None, data_dir: str | None) -> list[dict]:
    """A row per number of heads left: test accuracy in percent, by order."""
    split = test_images.first_images(run, num_images, data_dir, usual=10**9)
    attention = run.attention()
    maps = [np.asarray(block.attention.merged_maps(), np.float64) for block in run.model.blocks]
    layers = [
        (layer.astype(np.float64).reshape(len(layer), -1), of.reshape(len(of), -1))
        for layer, of in zip(attention, maps, strict=True)
    ]
    entropy = [layer_statistics(layer, kernel_shifts((1, 1))).entropy for layer in attention]
    heads = [(n, h) for n, layer in enumerate(layers) for h in range(len(layer[0]))]
    by_entropy = sorted(heads, key=lambda head: -entropy[head[0]][head[1]])
    by_loss = order_of_loss(layers)
    rows = []
    for removed in range(0, len(heads), max(1, len(heads) // 9)):
        row: dict[str, Any] = {"heads left": len(heads) - removed}
        for name, order, refit in (
            ("entropy", by_entropy, False),
            ("entropy, taken over", by_entropy, True),
            ("by rank, taken over", by_loss, True),
        ):
            model = without(run.model, layers, order[:removed], refit)
            guesses = dataclasses.replace(run, model=model).predict(split.images).argmax(axis=1)
            row[name] = f"{np.mean(guesses == split.labels):.1%}"
        lost = Counter(n for n, _ in by_loss[:removed])
        row["left by layer"] = " ".join(str(len(layer[0]) - lost[n]) for n, layer in enumerate(layers))
        rows.append(row)
    return rows


def order_of_loss(layers: Layers) -> list[tuple[int, int]]:
    """All heads but one per layer, each time the one without which its layer changes least, as (layer, head)."""
    kept, order = [list(range(len(layer[0]))) for layer in layers], []
    # Distances to a span of patterns: those of the layer itself over an orthonormal basis, `(h, h) @ (h, d o)`.
    small = [np.linalg.qr(patterns.T)[1] for patterns, _ in layers]
    made = [basis @ values for basis, (_, values) in zip(small, layers, strict=True)]

    def loss(n: int, heads: list[int]) -> float:
        basis = np.linalg.qr(small[n][:, heads])[0]
        return float(np.linalg.norm(made[n] - basis @ (basis.T @ made[n])) / np.linalg.norm(made[n]))

    while any(len(heads) > 1 for heads in kept):
        options = [
            (loss(n, [x for x in heads if x != h]), n, h)
            for n, heads in enumerate(kept)
            if len(heads) > 1
            for h in heads
        ]
        _, n, h = min(options)
        kept[n].remove(h)
        order.append((n, h))
    return order


def without(model: Any, layers: Layers, removed: list[tuple[int, int]], refit: bool) -> Any:
    """A copy of a network without some heads, whose value maps are zero."""
    model = nnx.clone(model)
    for n, (patterns, values) in enumerate(layers):
        attention = model.blocks[n].attention
        kept, bias = [h for h in range(len(patterns)) if (n, h) not in removed], attention.output.bias[...]
        new = np.zeros_like(values)
        if kept:
            mixed = np.linalg.lstsq(patterns[kept].T, patterns.T, rcond=None)[0] @ values
            new[kept] = mixed if refit else values[kept]
        attention.value = None
        set_values(attention, new.reshape(len(patterns), -1, attention.output.out_features).astype(np.float32))
        attention.output.bias = nnx.Param(bias)
    return model


if __name__ == "__main__":
    sys.exit(main())
