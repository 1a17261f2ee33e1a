"""Records the numbers that no change of structure may move, and compares two records.

    python tests/golden/record.py OUT.json [--only digits flops ...] [--images IMAGES.npy]
    python tests/golden/record.py --compare tests/golden/v0_2.json OUT.json

It trains through train.py and reads metrics.jsonl, so that any version can be recorded. Parts: `digits` (losses of an
epoch of configs/digits.py), `paper` (50 losses of the paper's networks at batch 4, without dropout), `float64` (5
steps of plain gradient descent on them in double precision), `pretrained` (classes and probabilities of the networks
that the package includes), `tables` (what `attn-cnn heads`, `summary` and `convolution` print), `theorem` (errors of
convolutions as attention). `--images` adds classes of images `(n, 32, 32, 3)` uint8 by the networks for CIFAR-10.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(os.environ.get("PYTHONPATH") or Path(__file__).parents[2])
PAPER = ("quadratic", "learned_rel", "learned_rel_content")
PRETRAINED = {"digits": (8, 8, 1), "cifar10": (32, 32, 3), "cifar10_maps16": (32, 32, 3)}
TABLES = {
    "heads digits": ("heads", "pretrained:digits"),
    "heads cifar10": ("heads", "pretrained:cifar10"),
    "summary": ("summary",),
    "convolution digits": ("convolution", "pretrained:digits", "--kernel-sizes=1,3,5,7"),
}
TOLERANCE = {"digits": 1e-4, "paper": 1e-4, "float64": 1e-10, "pretrained": 1e-5, "tables": 0, "theorem": 1e-6}


def losses(config: str, *flags: str) -> list[float]:
    """Returns the training losses of every step of an epoch."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", f"--config={config}", f"--workdir={folder}/run", *flags]
        common = ["--config.train.log_every_steps=1", "--config.train.num_epochs=1"]
        subprocess.run([*command, *common], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        records = map(json.loads, Path(folder, "run", "metrics.jsonl").read_text().splitlines())
        return [record["loss"] for record in records]


def digits() -> dict:
    """Returns the losses of version 0.2's configs/digits.py: order of the images, augmentation, optimizer; last, the
    test loss."""
    flags = ("--config.dataset.name=digits", "--config.optimizer.name=sgd", "--config.optimizer.learning_rate=0.05")
    return {"losses": losses("configs/digits.py", *flags)}


def noise(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Returns images of uniform noise, uint8."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def paper() -> dict:
    """Returns 50 losses of the paper's networks on noise, batch 4, without dropout; last, the test loss."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "noise.npz")
        labels = np.arange(220) % 10
        images = noise(220, (32, 32, 3))
        np.savez(file, images=images[:200], labels=labels[:200], test_images=images[200:], test_labels=labels[200:])
        flags = [
            "--config.dataset.name=npz",
            f"--config.dataset.path={file}",
            f"--config.dataset.data_dir={folder}/data",
            "--config.train.batch_size=4",
            "--config.model.dropout=0.0",
            "--config.model.attention_dropout=0.0",
            "--config.optimizer.learning_rate=0.01",
        ]
        return {name: losses(f"configs/{name}.py", *flags) for name in PAPER}


def float64() -> dict:
    """Returns the losses of 5 steps of gradient descent in double precision, batch 2."""
    code = f"""
import json, importlib.util, jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from attn_cnn_jax.config import create_model
jax.config.update("jax_enable_x64", True)
images = np.random.default_rng(1).normal(size=(2, 32, 32, 3))
labels = np.array([3, 7])
result = {{}}
for name in {PAPER!r}:
    spec = importlib.util.spec_from_file_location(name, f"configs/{{name}}.py")
    module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
    config = module.get_config(); config.model.dtype = "float64"
    model = create_model(config.model, rngs=nnx.Rngs(0))
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)
    @jax.jit
    def step(parameters):
        def loss(parameters):
            logits = nnx.merge(graph, parameters, rest)(images)[0]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        value, gradient = jax.value_and_grad(loss)(parameters)
        return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradient), value
    found = []
    for _ in range(5):
        parameters, value = step(parameters)
        found.append(float(value))
    result[name] = found
print(json.dumps(result))
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    return json.loads(ran.stdout.splitlines()[-1])


def pretrained(images: Path | None = None) -> dict:
    """Returns classes of images as one text of digits, and probabilities of the first 20, of every included network."""
    import attn_cnn_jax

    sets = {name: noise(20, shape, 2) for name, shape in PRETRAINED.items()}
    from sklearn.datasets import load_digits

    scans = np.round(load_digits().images * (255 / 16)).astype(np.uint8)[..., None]
    sets["digits"] = scans
    found = {}
    for name, given in sets.items():
        run = attn_cnn_jax.load_pretrained(name)
        probabilities = run.predict(given)
        attention = [np.asarray(layer, np.float64) for layer in run.attention()]
        found[name] = {
            "classes": "".join(map(str, probabilities.argmax(axis=1))),
            "probabilities": probabilities[:20].astype(float).round(9).tolist(),
            "attention": [[float(np.square(layer).sum()), float(layer.max())] for layer in attention],
        }
        if images is not None and given.shape[1:] == (32, 32, 3):
            probabilities = run.predict(np.load(images))
            found[name]["classes of images"] = "".join(map(str, probabilities.argmax(axis=1)))
            found[name]["mean of largest"] = float(probabilities.max(axis=1).astype(float).mean())
    return found


def tables() -> dict:
    """Returns the numbers in the tables that commands print."""
    found = {}
    for name, command in TABLES.items():
        ran = subprocess.run(
            [sys.executable, "-m", "attn_cnn_jax", *command], check=True, cwd=ROOT, capture_output=True, text=True
        )
        found[name] = [float(number.replace(",", "")) for number in re.findall(r"[-+]?\d[\d,]*\.?\d*", ran.stdout)]
    return found


def theorem() -> dict:
    """Returns sums of a convolution as attention, and its error, for sharpness from soft to hard."""
    import jax
    import jax.numpy as jnp

    from attn_cnn_jax.theorem.to_attention import conv_to_attention

    random = np.random.default_rng(3)
    kernel = random.normal(size=(3, 3, 4, 5)).astype(np.float32)
    image = random.normal(size=(1, 8, 8, 4)).astype(np.float32)
    exact = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    found = {}
    for sharpness in (1.0, 5.0, 46.0):
        attended = conv_to_attention(kernel, sharpness=sharpness)(jnp.asarray(image))
        found[str(sharpness)] = [float(jnp.abs(attended - exact).max()), float(jnp.square(attended).sum())]
    return found


PARTS = {
    "digits": digits,
    "paper": paper,
    "float64": float64,
    "pretrained": pretrained,
    "tables": tables,
    "theorem": theorem,
}


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
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--images", type=Path)
    parser.add_argument("--compare", type=Path, metavar="OLD")
    options = parser.parse_args()
    if options.compare:
        old, new = (json.loads(file.read_text()) for file in (options.compare, options.out))
        worst = 0
        for part in old.keys() & new.keys():
            for name in old[part]:
                found = difference(old[part][name], new[part].get(name))
                passed = found <= TOLERANCE[part]
                worst |= not passed
                print(f"{'ok    ' if passed else 'DIFFERS'} {part} {name}: {found:.2e}, allowed {TOLERANCE[part]:.0e}")
        return int(worst)
    record = json.loads(options.out.read_text()) if options.out.exists() else {}
    for part in options.only:
        record[part] = pretrained(options.images) if part == "pretrained" else PARTS[part]()
        options.out.write_text(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
