"""Writes a run's network as StableHLO, which `jax.export` loads without this package."""

from pathlib import Path

import jax
import numpy as np
from jax import export as jax_export

from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.interop.inference import difference, inference
from attn_cnn_jax.runs.run import Run

FILE = "model.stablehlo"
PLATFORMS = ("cpu", "cuda", "tpu")


def write(folder: Path, run: Run) -> float:
    """Writes the function for all PLATFORMS; returns the largest difference of its logits from the run's."""
    (batch,) = jax_export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((batch, *run.config.model.image_shape), np.uint8)
    exported = jax_export.export(jax.jit(inference(run)), platforms=PLATFORMS)(images)
    write_atomically(folder / FILE, bytes(exported.serialize()))
    return difference(run, jax_export.deserialize(bytearray((folder / FILE).read_bytes())).call)
