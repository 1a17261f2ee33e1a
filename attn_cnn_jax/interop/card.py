"""The model card of an exported network: what it is, its data and accuracy, its classes, how to load it."""

import re

from attn_cnn_jax.analysis.flops import count_flops, count_parameters, short
from attn_cnn_jax.config.network import describe
from attn_cnn_jax.runs.environment import in_words, package_version
from attn_cnn_jax.runs.metrics import accuracy_in_words, is_checked
from attn_cnn_jax.runs.run import Run

CALL = "# images: uint8 (B, {shape}), as the data set has them; logits: float32 (B, {classes})"
LOAD = {
    "safetensors": """\
import attn_cnn_jax

run = attn_cnn_jax.load_run("FOLDER")  # this folder
run.predict(images)  # class probabilities
# the arrays alone: safetensors.numpy.load_file("FOLDER/model.safetensors")""",
    "jax": """\
import jax.export, pathlib

network = jax.export.deserialize(bytearray(pathlib.Path("FOLDER/model.stablehlo").read_bytes()))
logits = network.call(images)  # on CPU, CUDA or TPU; attn-cnn-jax is not needed""",
    "onnx": """\
import onnxruntime

network = onnxruntime.InferenceSession("FOLDER/model.onnx")
(logits,) = network.run(["logits"], {"images": images})""",
}


def card(run: Run, format: str, note: str = "") -> str:
    """Returns the text of README.md, for a format of LOAD, with a sentence on data or training."""
    config, spec = run.config, run.spec
    height, width, channels = config.model.image_shape
    optimizer, train = config.optimizer, config.train
    mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (spec.mean, spec.std))
    rate, seed = f"learning rate {optimizer.learning_rate:g} ({optimizer.schedule})", f"seed {config.seed}"
    rows = {
        "network": describe(config.model),
        "parameters": f"{count_parameters(config.model):,}",
        "FLOPs per image": short(count_flops(config.model).linear),
        "data": f"{markdown(config.dataset.name)}, images of {height}x{width}",
        "accuracy": accuracy(run),
        "training": f"{optimizer.name}, {train.num_epochs} epochs of batches of {train.batch_size}, {rate}, {seed}",
        "normalisation": f"(pixel / 255 - mean) / std, mean {mean}, std {std}",
        f"{config.model.num_classes} classes": ", ".join(map(markdown, run.class_names))
        or "numbered from 0; their names are not known",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    inside = "" if format == "safetensors" else "The file normalises images itself.\n"
    return f"""\
---
library_name: attn-cnn-jax
pipeline_tag: image-classification
tags: [jax, self-attention, arxiv:1911.03584]
---

# {markdown(config.dataset.name)}: {describe(config.model)}

An image classifier whose heads attend as in arXiv 1911.03584, trained by attn-cnn-jax.
{markdown(note)}

| | |
|---|---|
{table}

{inside}`config.json` holds the whole configuration.

```python
{LOAD[format]}
{CALL.format(shape=f"{height}, {width}, {channels}", classes=config.model.num_classes)}
```

Written by attn-cnn-jax {package_version() or "(version unknown)"}.
"""


def accuracy(run: Run) -> str:
    """Returns the test accuracy and which machine measured it, as far as the run says so."""
    test = run.test_record
    if not test:
        return "not measured"
    text = f"{accuracy_in_words(test)} of the test images, at step {run.step}"
    if not is_checked(test):
        return f"{text}; measured before version 0.4, whose programs were not checked"
    return f"{text}; measured on {in_words(run.environment)}" if run.environment else text


def markdown(text: str) -> str:
    """Returns a text as Markdown shows it literally, on one line and within a cell of a table, and HTML likewise."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|~!])", r"\\\1", text)
