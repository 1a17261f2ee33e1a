"""Computes the numbers that no change of structure may move, and compares them with those of version 0.2.

    python -m tests.golden.record [PART ...] [--write]

Parts: `digits` (losses of an epoch of configs/digits.py), `paper` (50 losses of the paper's networks), `float64` (5
steps of gradient descent on them in double precision), `pretrained` (classes, probabilities and attention of the
networks that the package includes), `tables` (what `attn-cnn heads`, `summary` and `convolution` print), `theorem`
(errors of convolutions as attention). `--write` keeps what was found instead.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import re
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import attn_cnn_jax
from attn_cnn_jax.cli.configs import load_config
from attn_cnn_jax.cli.main import main as attn_cnn
from attn_cnn_jax.config import create_model
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.theorem.to_attention import conv_to_attention

RECORD = Path(__file__).with_name("v0_2.json")
PAPER = ("quadratic", "learned_rel", "learned_rel_content")
PRETRAINED = {"digits": (8, 8, 1), "cifar10": (32, 32, 3), "cifar10_maps16": (32, 32, 3)}
TABLES = {
    "heads digits": ("heads", "pretrained:digits"),
    "heads cifar10": ("heads", "pretrained:cifar10"),
    "summary": ("summary",),
    "convolution digits": ("convolution", "pretrained:digits", "--kernel-sizes=1,3,5,7"),
}


def rounding(terms: int, times: float = 1, bits: int = 24) -> float:
    """The size of the error of a sum of so many terms in floating point of so many bits, relative to its size.

    Roundings have random signs: they add up as the root of their number. `times` such sums follow one another.
    """
    return times * terms**0.5 * 2.0**-bits


TOLERANCE = {
    "digits": rounding(576, 57),  # an epoch of steps; the longest sums are over nine heads of 64 channels
    "paper": rounding(3600, 50),  # nine heads of 400 channels
    "float64": rounding(3600, 5, bits=53),
    "pretrained": rounding(1296, 8),  # two products in each of four layers, nine heads of 144 channels
    "tables": 0,
    # Nine heads of four channels; the products of an image and a kernel of normal numbers add up to 23 without signs.
    "theorem": 36 * 23 * 2.0**-24,
}


def losses(name: str, folder: Path, **values: object) -> list[float]:
    """Returns the training losses of every step of an epoch; last, the test loss."""
    values |= {"dataset.data_dir": folder / "data", "train.log_every_steps": 1, "train.num_epochs": 1}
    config = load_config(name, [f"--config.{key}={value}" for key, value in values.items()])
    attn_cnn_jax.train(config, folder / name)
    return [record["loss"] for record in read_metrics(folder / name / "metrics.jsonl")]


def digits(folder: Path) -> dict:
    """Returns the losses of version 0.2's configs/digits.py: order of the images, augmentation, optimizer."""
    values = {"dataset.name": "digits", "optimizer.name": "sgd", "optimizer.learning_rate": 0.05}
    return {"losses": losses("digits", folder, **values)}


def noise(count: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Returns images of uniform noise, uint8."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def paper(folder: Path) -> dict:
    """Returns 50 losses of the paper's networks on noise, batch 4, without dropout."""
    images, labels, file = noise(220, (32, 32, 3), 0), np.arange(220) % 10, folder / "noise.npz"
    np.savez(file, images=images[:200], labels=labels[:200], test_images=images[200:], test_labels=labels[200:])
    values = {"dataset.name": "npz", "dataset.path": file, "train.batch_size": 4, "optimizer.learning_rate": 0.01}
    values |= {"model.dropout": 0.0, "model.attention_dropout": 0.0}
    return {name: losses(name, folder, **values) for name in PAPER}


def float64(_: Path) -> dict:
    """Returns the losses of 5 steps of gradient descent in double precision, batch 2."""
    images, labels, found = np.random.default_rng(1).normal(size=(2, 32, 32, 3)), np.array([3, 7]), {}
    for name in PAPER:
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            model = load_config(name, ["--config.model.dtype=float64"]).model
            skeleton, parameters, statistics = split(create_model(model, rngs=nnx.Rngs(0)))

            @jax.jit
            def step(parameters, skeleton=skeleton, statistics=statistics):
                def loss(parameters):
                    logits = join(skeleton, parameters, statistics)(images)[0]
                    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

                value, gradient = jax.value_and_grad(loss)(parameters)
                return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradient), value

            found[name] = []
            for _ in range(5):
                parameters, value = step(parameters)
                found[name].append(float(value))
    return found


def pretrained(_: Path) -> dict:
    """Returns classes of images as one text of digits, probabilities of the first 20, sums of attention."""
    found = {}
    for name, shape in PRETRAINED.items():
        run, images = attn_cnn_jax.load_pretrained(name), noise(20, shape, 2)
        if name == "digits":
            # What sklearn.datasets.load_digits reads; to import scikit-learn takes two seconds.
            file = Path(importlib.util.find_spec("sklearn").origin).parent / "datasets" / "data" / "digits.csv.gz"
            images = np.loadtxt(file, delimiter=",")[:, :-1].reshape(-1, 8, 8, 1)
            images = np.round(images * (255 / 16)).astype(np.uint8)
        probabilities = run.predict(images)
        attention = [np.asarray(layer, np.float64) for layer in run.attention()]
        found[name] = {
            "classes": "".join(map(str, probabilities.argmax(axis=1))),
            "probabilities": probabilities[:20].astype(float).round(9).tolist(),
            "attention": [[float(np.square(layer).sum()), float(layer.max())] for layer in attention],
        }
    return found


def tables(folder: Path) -> dict:
    """Returns the numbers in the tables that commands print; `convolution` also writes files where it is."""
    found = {}
    for name, command in TABLES.items():
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
            assert attn_cnn(command) == 0
        numbers = re.findall(r"[-+]?\d[\d,]*\.?\d*", printed.getvalue())
        found[name] = [float(number.replace(",", "")) for number in numbers]
    return found


def theorem(_: Path) -> dict:
    """Returns sums of a convolution as attention, and its error, for sharpness from soft to hard."""
    random, found = np.random.default_rng(3), {}
    kernel = random.normal(size=(3, 3, 4, 5)).astype(np.float32)
    image = random.normal(size=(1, 8, 8, 4)).astype(np.float32)
    exact = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    for sharpness in (1.0, 5.0, 46.0):
        attended = conv_to_attention(kernel, sharpness=sharpness)(jnp.asarray(image))
        found[str(sharpness)] = [float(jnp.abs(attended - exact).max()), float(jnp.square(attended).sum())]
    return found


PARTS = {part.__name__: part for part in (digits, paper, float64, pretrained, tables, theorem)}


def difference(old: object, new: object) -> float:
    """Returns the largest difference of two trees of numbers, relative above 1; of other text, infinity."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() <= new.keys():
        return max((difference(old[key], new[key]) for key in old), default=0.0)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return max(map(difference, old, new), default=0.0)
    if isinstance(old, int | float) and isinstance(new, int | float):
        return abs(old - new) / max(1, abs(old))
    return 0.0 if old == new else float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PARTS))
    parser.add_argument("--write", action="store_true")
    options, recorded, worst = parser.parse_args(), json.loads(RECORD.read_text()), 0
    for part in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            found = PARTS[part](Path(folder))
        for name, old in recorded[part].items():
            distance, allowed = difference(old, found[name]), TOLERANCE[part]
            worst |= distance > allowed
            print(f"{'DIFFERS' if distance > allowed else 'ok'} {part} {name}: {distance:.2e}, allowed {allowed:.0e}")
        if options.write:
            recorded[part] = found
            RECORD.write_text(json.dumps(recorded) + "\n")
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
