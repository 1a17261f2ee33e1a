"""Writes a run's network for ONNX Runtime: needs pip install "attn-cnn-jax[onnx]"."""

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from attn_cnn_jax.errors import UserError, shortened
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.interop.inference import difference, inference
from attn_cnn_jax.runs.run import Run

FILE = "model.onnx"
ERRORS = 3  # severity from which ONNX Runtime speaks: it warns of constants that it leaves out


def write(folder: Path, run: Run) -> float:
    """Writes the network, computed in float32; returns the largest difference of ONNX Runtime's logits from the run's.

    Raises:
      UserError: if jax2onnx or ONNX Runtime is not installed, or jax2onnx cannot convert the network.
    """
    jax2onnx, onnxruntime = import_onnx()
    (batch,) = jax_export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((batch, *run.config.model.image_shape), np.uint8)
    logging.getLogger().addFilter(is_no_remark)
    try:
        logits = inference(run, "float32")
        model = jax2onnx.to_onnx(logits, [images], input_names=["images"], output_names=["logits"])
    except Exception as error:  # of many types, as an operation can be unknown to it in many ways
        raise UserError(f"jax2onnx cannot convert this network: {shortened(error)}") from error
    finally:
        logging.getLogger().removeFilter(is_no_remark)
    write_atomically(folder / FILE, model.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS
    session = onnxruntime.InferenceSession(folder / FILE, options, providers=["CPUExecutionProvider"])
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
        raise UserError(
            f'--format=onnx needs a package that is not installed ({error.name}): pip install "attn-cnn-jax[onnx]"'
        ) from error
    return jax2onnx, onnxruntime
