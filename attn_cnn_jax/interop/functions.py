"""A run's network as one function from uint8 images to logits, written as StableHLO or ONNX."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from attn_cnn_jax.arrays import Images
from attn_cnn_jax.config.network import abstract_model, grid
from attn_cnn_jax.data.augment import normalise
from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.attention.layer import implementation_for
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs.run import Run

STABLEHLO, ONNX = "model.stablehlo", "model.onnx"
PLATFORMS = ("cpu", "cuda", "tpu")
MOST_BYTES = 2**24  # of attention that a file may hold for one layer instead of computing it
SAMPLE = 8  # images on which an exported network is compared with the run
# Largest difference that rounding explains, relative to the largest logit.
EXACT, ROUNDED = 1e-4, 5e-2


def inference(run: Run, dtype: str | None = None) -> Callable[[Any], jax.Array]:
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
    name = implementation_for(layer, (1, *size, layer.output.out_features), training=False)
    if name == "dense" and not layer.depends_on_content and 4 * layer.num_heads * pixels**2 > MOST_BYTES:
        return "factorised" if layer.factorises else "blocked"
    return name


def write_stablehlo(folder: Path, run: Run) -> float:
    """Writes the function for all PLATFORMS; returns the largest difference of its logits from the run's."""
    exported = jax_export.export(jax.jit(inference(run)), platforms=PLATFORMS)(any_batch(run))
    write_atomically(folder / STABLEHLO, bytes(exported.serialize()))
    return difference(run, jax_export.deserialize(bytearray((folder / STABLEHLO).read_bytes())).call)


def write_onnx(folder: Path, run: Run) -> float:
    """Writes the network, computed in float32; returns the largest difference of ONNX Runtime's logits from the run's.

    Raises:
      UserError: if jax2onnx or ONNX Runtime is not installed, or jax2onnx cannot convert the network.
    """
    jax2onnx, onnxruntime = import_onnx()
    logging.getLogger().addFilter(is_no_remark)
    try:
        logits = inference(run, "float32")
        model = jax2onnx.to_onnx(logits, [any_batch(run)], input_names=["images"], output_names=["logits"])
    except Exception as error:  # of many types, as an operation can be unknown to it in many ways
        raise UserError(f"jax2onnx cannot convert this network: {shortened(error)}") from error
    finally:
        logging.getLogger().removeFilter(is_no_remark)
    write_atomically(folder / ONNX, model.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: it warns of constants that it leaves out
    session = onnxruntime.InferenceSession(folder / ONNX, options, providers=["CPUExecutionProvider"])
    return difference(run, lambda images: session.run(["logits"], {"images": images})[0])


def is_no_remark(record: logging.LogRecord) -> bool:
    """Returns whether a log record is not jax2onnx's remark that batch norm is exported for inference."""
    return "BatchNorm exported" not in record.getMessage()


def import_onnx() -> tuple[Any, Any]:
    """Returns the modules `jax2onnx` and `onnxruntime`; UserError where they are not installed."""
    try:
        import jax2onnx  # pyright: ignore[reportMissingImports]
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        message = f'--format=onnx needs a package that is not installed ({error.name}): pip install -e ".[onnx]"'
        raise UserError(message) from error
    return jax2onnx, onnxruntime


def any_batch(run: Run) -> jax.ShapeDtypeStruct:
    """Returns the images that an exported function takes: `(b, H, W, C)` uint8 for any `b`."""
    (batch,) = jax_export.symbolic_shape("b")
    return jax.ShapeDtypeStruct((batch, *run.config.model.image_shape), np.uint8)


def difference(run: Run, found: Callable[[Images], Any]) -> float:
    """Returns the largest difference of an exported network's logits from those of the run, on images of noise.

    Args:
      run: what was exported.
      found: the exported network, read back from its file: images to logits; called with several images and with one.

    Raises:
      UserError: if the difference is more than rounding.
    """
    images = np.random.default_rng(0).integers(0, 256, (SAMPLE, *run.config.model.image_shape), np.uint8)
    skeleton, *arrays = split(run.model)
    with jax.default_matmul_precision("highest"):  # of what is traced here; an exported function keeps its own
        expected = np.asarray(jax.jit(lambda arrays, x: join(skeleton, *arrays)(x)[0])(arrays, run.normalised(images)))
        differences = [np.abs(np.asarray(found(images[:n])) - expected[:n]).max() for n in (SAMPLE, 1)]
    # Beside CPUs, products of float32 are rounded to TensorFloat-32 or bfloat16 unless the highest precision is set.
    products = jax.default_backend() != "cpu" and run.config.train.matmul_precision != "highest"
    relative = ROUNDED if products or run.config.model.dtype == "bfloat16" else EXACT
    largest, most = float(max(differences)), relative * float(np.abs(expected).max())
    if not largest <= most:
        raise UserError(f"the exported network's logits differ by {largest:.2g}, more than rounding ({most:.2g}): bug")
    return largest
