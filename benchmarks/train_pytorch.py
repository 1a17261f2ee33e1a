"""Plain PyTorch training of the network of configs/cifar10_cpu.py: what it reaches in the same time.

    python -m benchmarks.train_pytorch --data-dir=DIR --out=OUT [--epochs=5] [--optimizer=muon] [--seed=0]

The network is that of attn_cnn_jax/interop/torch_networks.py, in eager mode; data, batch size, crop, mirroring, warm-up
and cosine decay are the configuration's. Muon is PyTorch's own, for the matrices of the blocks, with Adam for the rest.
OUT gets `config.json`, and `metrics.jsonl` with test accuracy and minutes of training after every epoch, as runs do.
"""

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from ml_collections import ConfigDict

from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.config import complete
from attn_cnn_jax.data import sources
from attn_cnn_jax.errors import says_errors
from benchmarks.pytorch import network_of
from benchmarks.table import write_run

ADAM = 0.003  # its learning rate, that of the configuration before it had Muon


@says_errors
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", metavar="DIR", help="where CIFAR-10 is prepared")
    parser.add_argument("--out", type=Path, metavar="OUT", required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--optimizer", choices=("adam", "muon"), default="muon")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    config = complete(load_config("cifar10_cpu", [f"--config.seed={options.seed}"]))
    config.train.num_epochs = options.epochs
    if options.optimizer == "adam":
        config.optimizer.update({"name": "adam", "learning_rate": ADAM})
    records = []
    for record in train(config, sources.load("cifar10", options.data_dir)):
        print(json.dumps(record), flush=True)
        records.append(record)
    write_run(options.out, config, records)
    return 0


def train(config: ConfigDict, dataset: sources.Dataset):
    """Yields a record of evaluation after every epoch."""
    torch.manual_seed(config.seed)
    generator = np.random.default_rng(config.seed)
    network = network_of(config.model)
    optimizers = optimizers_of(network, config)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    size = config.train.batch_size
    steps = len(dataset.train.labels) // size
    total, seconds = steps * config.train.num_epochs, 0.0
    for epoch in range(config.train.num_epochs):
        network.train()
        started = time.monotonic()
        order = generator.permutation(len(dataset.train.labels))
        for n in range(steps):
            factor = schedule(epoch * steps + n, total, config.optimizer.warmup_fraction)
            for optimizer, of_groups in zip(optimizers, rates, strict=True):
                for group, rate in zip(optimizer.param_groups, of_groups, strict=True):
                    group["lr"] = rate * factor
                optimizer.zero_grad()
            chosen = order[n * size : (n + 1) * size]
            images = augmented(dataset.train.images[chosen], config.augment.crop_padding, generator)
            logits = network(normalised(images, dataset.spec))
            labels = torch.from_numpy(dataset.train.labels[chosen].astype(np.int64))
            torch.nn.functional.cross_entropy(logits, labels).backward()
            for optimizer in optimizers:
                optimizer.step()
        seconds += time.monotonic() - started
        found = {"step": (epoch + 1) * steps, "epoch": epoch + 1, "split": "test"}
        yield found | evaluate(network, dataset, config.train.eval_batch_size) | {"minutes": round(seconds / 60, 2)}


def optimizers_of(network: torch.nn.Module, config: ConfigDict) -> list[torch.optim.Optimizer]:
    """Returns the optimizers of all parameters."""
    rate, decay, momentum = (config.optimizer[key] for key in ("learning_rate", "weight_decay", "momentum"))
    if config.optimizer.name == "adam":
        return [torch.optim.Adam(network.parameters(), lr=rate, weight_decay=decay)]
    named = dict(network.named_parameters())
    shaped = {name for name, p in named.items() if re.fullmatch(r"encoder.*weight", name) and p.ndim == 2}
    matrices, others = ([p for name, p in named.items() if (name in shaped) == inside] for inside in (True, False))
    # Without weight decay, which Muon takes out of the parameters and not out of the gradient.
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, momentum=momentum, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.Adam(others, lr=rate, weight_decay=decay)]


def schedule(step: int, total: int, warmup_fraction: float) -> float:
    """Returns the factor of the learning rate: a linear rise from 0, then half a cosine to 0."""
    warmup = round(warmup_fraction * total)
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def augmented(images: np.ndarray, padding: int, generator: np.random.Generator) -> np.ndarray:
    """Returns pictures, each cropped at random after zero padding, half of them mirrored."""
    count, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
    rows, columns = generator.integers(0, 2 * padding + 1, (2, count))
    cropped = windows[np.arange(count), rows, columns].transpose(0, 2, 3, 1)
    return np.where(generator.random(count)[:, None, None, None] < 0.5, cropped[:, :, ::-1], cropped)


def normalised(images: np.ndarray, spec: sources.Spec) -> torch.Tensor:
    """Returns (images / 255 - mean) / std."""
    scaled = (images.astype(np.float32) / 255 - np.float32(spec.mean)) / np.float32(spec.std)
    return torch.from_numpy(scaled)


@torch.inference_mode()
def evaluate(network: torch.nn.Module, dataset: sources.Dataset, batch_size: int) -> dict[str, float]:
    """Returns loss and accuracy on the test pictures."""
    network.eval()
    loss, right, count = 0.0, 0, len(dataset.test.labels)
    for first in range(0, count, batch_size):
        labels = torch.from_numpy(dataset.test.labels[first : first + batch_size].astype(np.int64))
        logits = network(normalised(dataset.test.images[first : first + batch_size], dataset.spec))
        loss += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        right += int((logits.argmax(dim=-1) == labels).sum())
    return {"loss": loss / count, "accuracy": right / count}


if __name__ == "__main__":
    sys.exit(main())
