"""Draws figures of a network in training for TensorBoard: cli/train.py hands `draw` to the training loop."""

from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.analysis import pictures
from attn_cnn_jax.analysis.figures import centres, maps, style, training
from attn_cnn_jax.models import AttentionClassifier, ResNet
from attn_cnn_jax.runs.positions import read_positions
from attn_cnn_jax.runs.run import Run

PICTURES = 16  # to average the attention of content models over: training waits


def draw(config: ConfigDict, step: int, model: AttentionClassifier | ResNet, workdir: Path) -> dict[str, np.ndarray]:
    """Draws the figures that `config.train.figures` names, of a network at a step.

    Returns:
      By name, `(height, width, 3)` uint8. Figures that a network does not have are left out.
    """
    run = Run(config, step, model, config.seed)
    if config.model.name != "attention":
        return {}
    query = pictures.centre(run)
    drawn = {}
    if {"centres", "maps"} & set(config.train.figures):
        images = first_images(config) if model.depends_on_content else None
        with jax.default_device(jax.local_devices()[0]):
            layers = run.attention() if images is None else pictures.mean_over(run, images)
        if "centres" in config.train.figures:
            drawn["centres"] = centres.draw_run(run, layers)
        if "maps" in config.train.figures:
            title = maps.title(query, None if images is None else len(images), maps.ORDER)
            drawn["maps"] = maps.draw(layers, query, maps.ORDER, title)
    records = read_positions(workdir, run.seed)
    if "training" in config.train.figures and records:
        for layer in range(len(records[0]["layers"])):
            drawn[f"training_layer{layer + 1}"] = training.draw(records, layer)
    return {name: style.pixels(figure) for name, figure in drawn.items()}


def first_images(config: ConfigDict) -> np.ndarray:
    """Returns the first test pictures, `(B, H, W, C)` uint8: `PICTURES`, or all where there are fewer."""
    test = pictures.dataset_of(config).test
    return test.at(np.arange(min(PICTURES, len(test.labels)))).images
