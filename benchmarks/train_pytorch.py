"""Plain PyTorch training of the network of configs/cifar10_cpu.py, for fifteen_minutes.py.

The network is that of tests/support/torch_networks.py, in eager mode; batch size, crop, mirroring, warm-up and
cosine decay are the configuration's. Muon is PyTorch's own, for the matrices of the blocks, with Adam for the rest.
Imported only where PyTorch is installed.
"""

import re
import time
from collections.abc import Iterator

import numpy as np
import torch
from ml_collections import ConfigDict

from attn_cnn_jax.data.sets import Dataset, Spec
from benchmarks.pytorch import network_of
from tests.support.torch_networks import warmup_and_cosine


def train(config: ConfigDict, dataset: Dataset) -> Iterator[dict]:
    """Yields records of training and evaluation after every epoch, as metrics.jsonl of a run has them."""
    torch.manual_seed(config.seed)
    generator = np.random.default_rng(config.seed)
    network = network_of(config.model)
    optimizers = optimizers_of(network, config)
    size = config.train.batch_size
    steps = len(dataset.train.labels) // size
    total = steps * config.train.num_epochs
    warmup = round(config.optimizer.warmup_fraction * total)
    for epoch in range(config.train.num_epochs):
        network.train()
        started, right = time.monotonic(), 0
        order = generator.permutation(len(dataset.train.labels))
        for n in range(steps):
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = warmup_and_cosine(epoch * steps + n, config.optimizer.learning_rate, total, warmup)
                optimizer.zero_grad()
            chosen = order[n * size : (n + 1) * size]
            images = augmented(dataset.train.images[chosen], config.augment.crop_padding, generator)
            logits = network(normalised(images, dataset.spec))
            labels = torch.from_numpy(dataset.train.labels[chosen].astype(np.int64))
            torch.nn.functional.cross_entropy(logits, labels).backward()
            right += int((logits.argmax(dim=-1) == labels).sum())
            for optimizer in optimizers:
                optimizer.step()
        rate = steps * size / (time.monotonic() - started)
        moment = {"step": (epoch + 1) * steps, "epoch": epoch + 1}
        yield moment | {"split": "train", "accuracy": right / (steps * size), "images_per_second": round(rate, 1)}
        yield moment | {"split": "test"} | evaluate(network, dataset, config.train.eval_batch_size)


def optimizers_of(network: torch.nn.Module, config: ConfigDict) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, Adam for the rest."""
    rate, decay, momentum = (config.optimizer[key] for key in ("learning_rate", "weight_decay", "momentum"))
    named = dict(network.named_parameters())
    shaped = {name for name, p in named.items() if re.fullmatch(r"encoder.*weight", name) and p.ndim == 2}
    matrices, others = ([p for name, p in named.items() if (name in shaped) == inside] for inside in (True, False))
    # Without weight decay, which Muon takes out of the parameters and not out of the gradient.
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, momentum=momentum, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.Adam(others, lr=rate, weight_decay=decay)]


def augmented(images: np.ndarray, padding: int, generator: np.random.Generator) -> np.ndarray:
    """Images, each cropped at random after zero padding, half of them mirrored."""
    count, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
    rows, columns = generator.integers(0, 2 * padding + 1, (2, count))
    cropped = windows[np.arange(count), rows, columns].transpose(0, 2, 3, 1)
    return np.where(generator.random(count)[:, None, None, None] < 0.5, cropped[:, :, ::-1], cropped)


def normalised(images: np.ndarray, spec: Spec) -> torch.Tensor:
    """`(images / 255 - mean) / std`."""
    return torch.from_numpy((images.astype(np.float32) / 255 - np.float32(spec.mean)) / np.float32(spec.std))


@torch.inference_mode()
def evaluate(network: torch.nn.Module, dataset: Dataset, batch_size: int) -> dict[str, float]:
    """Loss and accuracy on the test images."""
    network.eval()
    loss, right, count = 0.0, 0, len(dataset.test.labels)
    for first in range(0, count, batch_size):
        labels = torch.from_numpy(dataset.test.labels[first : first + batch_size].astype(np.int64))
        logits = network(normalised(dataset.test.images[first : first + batch_size], dataset.spec))
        loss += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        right += int((logits.argmax(dim=-1) == labels).sum())
    return {"loss": loss / count, "accuracy": right / count}
