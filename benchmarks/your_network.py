"""How convolutional are other networks? Trains vision transformers on CIFAR-10, and measures their attention.

    python -m benchmarks.your_network --network=vit_tiny --epochs=4 --out=OUT --data-dir=DIR
    python -m benchmarks.your_network --show=results/your_network [--write]

Networks: timm's ViT-Tiny and ConViT-Tiny with patches of 4, where timm is installed; a ViT of Flax NNX's attention;
those that this package ships, which are only measured; `dinov2_small` and `svtr`, see their modules. AdamW, warm-up and
cosine decay, crops, mirrored images; timm's compute in bfloat16. Training needs PyTorch. Test images are read once,
after it. OMP_NUM_THREADS=1 takes one core.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import attn_cnn_jax
from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.sets import Dataset
from attn_cnn_jax.errors import exits_with_messages
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.instrument.anatomy import PARTS
from attn_cnn_jax.instrument.figures import COLOURS
from benchmarks import dinov2, svtr
from benchmarks.records import DOCS, markdown, parse, parser, put_figure, show

TIMM = {"vit_tiny": "vit_tiny_patch16_224", "convit_tiny": "convit_tiny"}
SHIPPED = {"dinov2_small": (dinov2, "dinov2"), "svtr": (svtr, "svtr")}  # module, and its tables on a page
NETWORKS = ("pretrained:digits", "pretrained:cifar10", "pretrained:cifar10_maps16", "nnx_vit", *TIMM)
BATCH, RATE, DECAY, WARMUP = 100, 1e-3, 0.05, 0.05
MEASURED = 100  # test images whose attention is measured
PAGE = DOCS / "your_network.md"


class ViT(nnx.Module):
    """A vision transformer of `nnx.MultiHeadAttention`: 4x4 patches, learned positions, mean over patches."""

    def __init__(self, rngs: nnx.Rngs, layers: int = 6, hidden: int = 128, heads: int = 4):
        self.embed = nnx.Conv(3, hidden, (4, 4), strides=4, rngs=rngs)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (64, hidden)))

        def attention():
            return nnx.MultiHeadAttention(heads, hidden, decode=False, rngs=rngs)

        def perceptron():
            wide, narrow = nnx.Linear(hidden, 4 * hidden, rngs=rngs), nnx.Linear(4 * hidden, hidden, rngs=rngs)
            return nnx.Sequential(wide, jax.nn.gelu, narrow)

        blocks = [part() for _ in range(layers) for part in (attention, perceptron)]
        self.blocks = nnx.List([nnx.Sequential(nnx.LayerNorm(hidden, rngs=rngs), block) for block in blocks])
        self.classifier = nnx.Sequential(nnx.LayerNorm(hidden, rngs=rngs), nnx.Linear(hidden, 10, rngs=rngs))

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.embed(images).reshape(len(images), *self.positions.shape) + self.positions[...]
        for block in self.blocks:
            x = x + block(x)
        return self.classifier(x.mean(axis=1))


def nnx_trainer(steps: int) -> tuple[Any, Callable, Callable]:
    """The ViT of NNX, a training step of images and labels, and its logits."""
    network = ViT(nnx.Rngs(0))
    rate = optax.warmup_cosine_decay_schedule(0.0, RATE, round(WARMUP * steps), steps)
    optimizer = nnx.Optimizer(network, optax.adamw(rate, weight_decay=DECAY), wrt=nnx.Param)

    @nnx.jit
    def step(network, optimizer, images, labels):
        def loss(network):
            return optax.softmax_cross_entropy_with_integer_labels(network(images), labels).mean()

        value, gradient = nnx.value_and_grad(loss)(network)
        optimizer.update(network, gradient)
        return value

    logits = nnx.jit(lambda network, images: network(images))
    return network, lambda *batch: step(network, optimizer, *batch), lambda images: np.asarray(logits(network, images))


def torch_trainer(name: str, steps: int) -> tuple[Any, Callable, Callable]:
    """A network of timm, a training step of images and labels, and its logits."""
    import timm
    import torch

    torch.manual_seed(0)
    network = timm.create_model(TIMM[name], img_size=32, patch_size=4, num_classes=10)
    optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=DECAY)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=WARMUP, cycle_momentum=False)

    def step(images, labels):
        network.train()
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(torch.from_numpy(channels_first(images)))
        loss = torch.nn.functional.cross_entropy(logits.float(), torch.from_numpy(labels).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        return loss.item()

    def logits(images):
        network.eval()
        with torch.inference_mode():
            return network(torch.from_numpy(channels_first(images))).numpy()

    return network, step, logits


def scaled(images: np.ndarray) -> np.ndarray:
    """Pixels from -1 to 1."""
    return images.astype(np.float32) / 127.5 - 1


def channels_first(images: np.ndarray) -> np.ndarray:
    """`(b, H, W, C)` as PyTorch's `(b, C, H, W)`."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def train(name: str, epochs: int, dataset: Dataset) -> tuple[Any, dict]:
    """Returns a trained network, and what its training took and reached."""
    from benchmarks.train_pytorch import augmented  # imports PyTorch, which the tables do without

    split, each = dataset.train, len(dataset.train.labels) // BATCH
    network, step, logits = torch_trainer(name, epochs * each) if name in TIMM else nnx_trainer(epochs * each)
    about: dict[str, Any] = {"epochs": epochs, "gate_before": gates(network)}
    started = time.process_time()
    for epoch in range(epochs):
        generator = np.random.default_rng((0, epoch))
        order = generator.permutation(len(split.labels))
        for n in range(each):
            chosen = order[n * BATCH : (n + 1) * BATCH]
            loss = step(scaled(augmented(split.images[chosen], 4, generator)), split.labels[chosen])
            if n % 100 == 0:
                print(f"{name}: epoch {epoch + n / each:.1f} of {epochs}, loss {loss:.3f}", flush=True)
    about["cpu_minutes"] = (time.process_time() - started) / 60
    right = 0
    for first in range(0, len(dataset.test.labels), BATCH):
        batch = slice(first, first + BATCH)
        right += int((logits(scaled(dataset.test.images[batch])).argmax(axis=1) == dataset.test.labels[batch]).sum())
    return network, about | {"gate": gates(network), "accuracy": right / len(dataset.test.labels)}


def gates(network: Any) -> list[float]:
    """ConViT's share of attention by position rather than content, mean over heads, of each layer that has a gate."""
    parameters = dict(network.named_parameters()) if hasattr(network, "named_parameters") else {}
    return [float(values.sigmoid().mean()) for name, values in parameters.items() if "gating_param" in name]


def measure(name: str, epochs: int, data_dir: str | None) -> dict:
    """Trains or loads a network, and returns what its attention is like by layer."""
    if name.startswith("pretrained:"):
        network = attn_cnn_jax.load_run(name)
        dataset = sources.load(network.config.dataset.name, data_dir)
        images = dataset.test.images[:MEASURED]
        about = {"accuracy": network.evaluate(dataset.test.images, dataset.test.labels).accuracy}
    else:
        dataset = sources.load("cifar10", data_dir)
        network, about = train(name, epochs, dataset)
        images = scaled(dataset.test.images[:MEASURED])
        images = channels_first(images) if name in TIMM else jnp.asarray(images)
    report = attn_cnn_jax.inspect(network, images, labels=dataset.test.labels[:MEASURED])
    print(report)
    return {"network": name, "grid": report.grid, **about, "layers": report.layers(), "replaced": report.replaced}


def path_of(folder: Path, name: str) -> Path:
    """The file of a network's record."""
    return folder / f"{name.replace(':', '_')}.json"


def kept(folder: Path) -> list[dict]:
    """The records that a folder keeps, in the order of `NETWORKS`."""
    paths = [path_of(folder, name) for name in NETWORKS]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def tables(folder: Path) -> str:
    """A table of networks, and one of their layers, means over heads."""
    networks, layers = [], []
    for record in kept(folder):
        name = {"network": f"`{record['network']}`"}
        heads, right = ([row[column] for row in record["replaced"]] for column in ("heads", "accuracy"))
        row = name | {"epochs": record.get("epochs", "shipped"), "test accuracy (%)": f"{100 * record['accuracy']:.1f}"}
        row["minutes of a core"] = f"{record['cpu_minutes']:.0f}" if "cpu_minutes" in record else ""
        shares = right[0], np.interp(heads[-1] / 2, heads, right), right[-1]
        titles = (f"right of {MEASURED} (%)", "half of its heads 3x3 convolutions", "all heads")
        networks.append(row | dict(zip(titles, [f"{100 * share:.0f}" for share in shares], strict=True)))
        for layer, gate in zip(record["layers"], record.get("gate", []) + 99 * [None], strict=False):
            row = name | {"layer": layer["layer"]} | {f"{part} (%)": f"{abs(100 * layer[part]):.0f}" for part in PARTS}
            row |= {"distance": f"{layer['distance']:.2f}", "Lemma 3's residual": f"{layer['lemma_3_residual']:.2f}"}
            layers.append(row | {"gate": "" if gate is None else f"{gate:.2f}"})
    return "\n".join(markdown(rows, tuple(rows[0])) for rows in (networks, layers))


def draw(folder: Path) -> Figure:
    """The anatomy of attention by depth, a panel per network."""
    records = kept(folder)
    with style.styled():
        figure = style.create_figure(1.25 * style.PAGE, 1.8)
        panels = figure.subplots(1, len(records), sharey=True)
        for axes, record in zip(panels, records, strict=True):
            shares = 100 * np.array([[layer[part] for part in PARTS] for layer in record["layers"]])
            below, numbers = np.cumsum(shares, axis=1) - shares, np.arange(1, len(shares) + 1)
            for n, (part, colour) in enumerate(COLOURS.items()):
                axes.bar(numbers, shares[:, n], bottom=below[:, n], width=0.9, color=colour, label=part)
            axes.set(title=record["network"].removeprefix("pretrained:"), xlabel="layer")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[0].set_ylabel("share of variance (%)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


@exits_with_messages
def main(argv: Sequence[str] | None = None) -> int:
    described = parser(__doc__)
    described.add_argument("--network", choices=(*NETWORKS, *SHIPPED), default=NETWORKS[0])
    described.add_argument("--epochs", type=int, default=4)
    options = parse(described, argv)
    if options.network in SHIPPED:
        module, name = SHIPPED[options.network]
        if options.out:
            module.measure(options.out)
        else:
            show(module.tables(options.show), dinov2.PAGE, name, write=options.write)
    elif options.out:
        found = measure(options.network, options.epochs, options.data_dir or None)
        options.out.mkdir(parents=True, exist_ok=True)
        write_atomically(path_of(options.out, options.network), json.dumps(found, indent=1) + "\n")
    else:
        show(tables(options.show), PAGE, "networks", write=options.write)
        if options.write:
            put_figure(draw(options.show), DOCS / "your_network.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
