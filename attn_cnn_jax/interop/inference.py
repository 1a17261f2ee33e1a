"""A run's network as one function, from pictures as the data set has them to logits: what export formats hold."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.arrays import Images
from attn_cnn_jax.config.network import abstract_model, grid
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.run import Run

MOST_BYTES = 2**24  # of attention that a file may hold for one layer instead of computing it
SAMPLE = 8  # pictures on which an exported network is compared with the run
# Largest difference that rounding explains, relative to the largest logit.
EXACT, ROUNDED = 1e-4, 5e-2

Logits = Callable[[Any], jax.Array]


def inference(run: Run, dtype: str | None = None) -> Logits:
    """Returns `logits(images)`: uint8 `(b, H, W, C)` to float32 `(b, classes)`, also for a batch of symbolic size.

    Matrix products have the precision of the run's `config.train.matmul_precision`.

    Args:
      run: whose network, without dropout and with merged linear maps.
      dtype: of activations, that of the run by default.
    """
    config = run.config.copy_and_resolve_references()
    config.model.dtype = dtype or config.model.dtype
    skeleton = split(abstract_model(config.model))[0]
    model = merged(join(skeleton, *split(run.model)[1:]), config.model.image_shape)
    if isinstance(model, AttentionClassifier):
        for block in model.blocks:
            block.attention.implementation = implementation_of(block.attention, grid(config.model))
    spec = run.spec

    def logits(images):
        return model(normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype)))[0]

    return in_precision(config.train.matmul_precision, logits)


def implementation_of(layer: Any, size: tuple[int, int]) -> str:
    """Returns the attention implementation for any batch: dense unless the attention fills memory or the file."""
    pixels = size[0] * size[1]
    name = layer.implementation_for((1, *size, layer.output.out_features), training=False)
    if name == "dense" and not layer.depends_on_content and 4 * layer.num_heads * pixels**2 > MOST_BYTES:
        return "factorised" if layer.factorises else "blocked"
    return name


def sample(run: Run) -> Images:
    """Returns pictures of noise to compare networks on."""
    shape = (SAMPLE, *run.config.model.image_shape)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def tolerance(config: ConfigDict) -> float:
    """Returns the largest difference of logits that rounding explains here, relative to the largest logit."""
    # Beside CPUs, products of float32 are rounded to TensorFloat-32 or bfloat16 unless the highest precision is set.
    products = jax.default_backend() != "cpu" and config.train.matmul_precision != "highest"
    return ROUNDED if products or config.model.dtype == "bfloat16" else EXACT


def difference(run: Run, found: Callable[[Images], Any]) -> float:
    """Returns the largest difference of an exported network's logits from those of the run, on `sample` and on one.

    Args:
      run: what was exported.
      found: the exported network, read back from its file: pictures to logits.

    Raises:
      UserError: if the difference is more than rounding.
    """
    images = sample(run)
    skeleton, *arrays = split(run.model)
    with jax.default_matmul_precision("highest"):  # of what is traced here; an exported function keeps its own
        expected = np.asarray(jax.jit(lambda arrays, x: join(skeleton, *arrays)(x)[0])(arrays, run.normalised(images)))
        differences = [np.abs(np.asarray(found(images[:n])) - expected[:n]).max() for n in (SAMPLE, 1)]
    largest, most = float(max(differences)), tolerance(run.config) * float(np.abs(expected).max())
    if not largest <= most:
        raise UserError(f"the exported network's logits differ by {largest:.2g}, more than rounding ({most:.2g}): bug")
    return largest
