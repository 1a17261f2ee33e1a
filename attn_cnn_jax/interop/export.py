"""Writes a run's network for use elsewhere: safetensors, StableHLO (`jax.export`), ONNX, the authors' release.

The first three are folders with `config.json`, a model card (README.md) and the network: as arrays by name, or as a
function from uint8 images to logits for any batch size. Each is read back and compared before it appears.
"""

import importlib
import logging
import os
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
from attn_cnn_jax.files import new_folder, write_atomically
from attn_cnn_jax.interop import FORMATS, release
from attn_cnn_jax.interop.card import card
from attn_cnn_jax.models import AttentionClassifier
from attn_cnn_jax.models.attention.parts import implementation_for
from attn_cnn_jax.models.layers import in_precision
from attn_cnn_jax.models.merging import merged
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs import selfcheck, weights
from attn_cnn_jax.runs.directory import to_json
from attn_cnn_jax.runs.load import load_run
from attn_cnn_jax.runs.run import Run

STABLEHLO, ONNX = "model.stablehlo", "model.onnx"
PLATFORMS = ("cpu", "cuda", "tpu")
SAMPLE = 8  # images on which an exported network is compared with the run
ROUNDED = 5e-2  # most by which any rounding may change its logits, relative to the largest


def write_safetensors(folder: Path, run: Run) -> float:
    """Writes the arrays; returns the largest difference of the logits of the network that is read back."""
    weights.write(folder, run)
    return difference(run, load_run(folder).logits)


def write_stablehlo(folder: Path, run: Run) -> float:
    """Writes the function for all PLATFORMS; returns the largest difference of its logits from the run's."""
    exported = jax_export.export(jax.jit(inference(run)), platforms=PLATFORMS)(any_batch(run))
    write_atomically(folder / STABLEHLO, bytes(exported.serialize()))
    return difference(run, jax_export.deserialize(bytearray((folder / STABLEHLO).read_bytes())).call)


def write_onnx(folder: Path, run: Run) -> float:
    """Writes the network, computed in float32; returns the largest difference of ONNX Runtime's logits from the run's.

    UserError if jax2onnx cannot convert the network.
    """
    one = np.zeros((1, *run.config.model.image_shape), np.uint8)
    check_for_onnx(jax.make_jaxpr(inference(run, "float32"))(one).jaxpr)
    jax2onnx, onnxruntime = map(importlib.import_module, NEEDED["onnx"])
    quiet = lambda record: "BatchNorm exported" not in record.getMessage()  # noqa: E731
    logging.getLogger().addFilter(quiet)
    try:
        logits = inference(run, "float32")
        model = jax2onnx.to_onnx(logits, [any_batch(run)], input_names=["images"], output_names=["logits"])
    except Exception as error:  # of many types, as an operation can be unknown to it in many ways
        raise UserError(f"jax2onnx cannot convert this network: {shortened(error)}") from error
    finally:
        logging.getLogger().removeFilter(quiet)
    write_atomically(folder / ONNX, model.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: it warns of constants that it leaves out
    session = onnxruntime.InferenceSession(folder / ONNX, options, providers=["CPUExecutionProvider"])
    return difference(run, lambda images: session.run(["logits"], {"images": images})[0])


def check_for_onnx(jaxpr: Any) -> None:
    """Raises UserError for operations that fail in ONNX, by jax2onnx 0.17; an encoding of one's own may have them."""
    exponentials = {id(equation.outvars[0]) for equation in jaxpr.eqns if equation.primitive.name == "exp"}
    divided = {id(equation.invars[0]) for equation in jaxpr.eqns if equation.primitive.name == "div"}
    for equation in jaxpr.eqns:
        name, found = equation.primitive.name, ""
        several = name == "reduce_sum" and len(equation.params["axes"]) > 1
        if several and id(equation.invars[0]) in exponentials & divided:
            found = "a softmax over several axes, which jax2onnx does not convert: flatten them"
        if name == "dot_general" and equation.outvars[0].aval.dtype == jnp.bfloat16:
            found = "products in bfloat16, which ONNX Runtime refuses: compute them in float32"
        if equation.params.get("name") == "_resize":
            found = "jax.image.resize, which jax2onnx does not convert: multiply by a matrix made beforehand"
        if found:
            raise UserError(f"--format=onnx: this network has {found}, or use --format=jax")
        for value in equation.params.values():
            if hasattr(inner := getattr(value, "jaxpr", value), "eqns"):
                check_for_onnx(inner)


FOLDERS = {"safetensors": write_safetensors, "jax": write_stablehlo, "onnx": write_onnx}
NEEDED = {"onnx": ("jax2onnx", "onnxruntime"), "pytorch": ("torch",)}  # packages, beside those that are always there


def export(run: Run, out: str | Path, format: str = "safetensors", note: str = "") -> str:
    """Writes the network of a run; returns a line that says where, and the largest difference of its logits.

    Args:
      run: as `load_run` returns it.
      out: a folder, for "pytorch" a file, that does not exist yet; it appears whole or not at all.
      format: one of FORMATS.
      note: a sentence on data or training for the model card, which "pytorch" does not have.

    Raises:
      UserError: for an unknown format, or a note where there is no card; if `out` exists, a package is missing, the
        format has no such network, or what was written computes something else.
    """
    out = Path(out)
    check(out, format, note)
    if format == "pytorch":
        release.write_release(run, out)
        return str(out)
    with new_folder(out) as folder:
        largest = FOLDERS[format](folder, run)
        config = run.config.copy_and_resolve_references()
        config.dataset.data_dir = ""  # of this machine; paths of own images and of the run it started from stay
        write_atomically(folder / "config.json", to_json(config))
        write_atomically(folder / "README.md", card(run, format, note))
    files = ", ".join(sorted(path.name for path in out.iterdir()))
    return f"{out}: {files}; largest difference of the logits {largest:.2g}"


def check(out: Path, format: str, note: str = "") -> None:
    """Raises UserError for what `export` would refuse whatever the run; before a run is loaded."""
    if format not in FORMATS:
        raise UserError(f"format={format!r}: allowed are {', '.join(FORMATS)}")
    if note and format == "pytorch":
        raise UserError(f"note={note!r}: a file of the authors' release has no model card; leave the note out")
    try:
        for package in NEEDED.get(format, ()):
            importlib.import_module(package)
    except ImportError as error:
        extra = "torch" if format == "pytorch" else format
        what = f"--format={format} needs a package that is not installed ({error.name})"
        raise UserError(f'{what}: pip install -e ".[{extra}]"') from error
    refuse_existing(out)


def refuse_existing(path: Path) -> None:
    """Raises UserError if something is where a command would write."""
    if os.path.lexists(path):
        raise UserError(f"--out={path} exists already: choose another, or remove it")


def inference(run: Run, dtype: str | None = None) -> Callable[[Any], jax.Array]:
    """Returns `logits(images)`: uint8 `(b, H, W, C)` to float32 `(b, classes)`, also for a batch of symbolic size.

    Without dropout and with merged linear maps. Matrix products have the precision of the run's
    `config.train.matmul_precision`, activations `dtype`, that of the run by default.
    """
    config = run.config.copy_and_resolve_references()
    config.model.dtype = dtype or config.model.dtype
    skeleton = split(abstract_model(config.model))[0]
    model = merged(join(skeleton, *split(run.model)[1:]), config.model.image_shape)
    if isinstance(model, AttentionClassifier):
        for layer in (block.attention for block in model.blocks):
            shape = (1, *grid(config.model), layer.output.out_features)  # whatever the batch will be
            layer.implementation = implementation_for(layer, shape, training=False)
    spec = run.spec

    def logits(images):
        return model(normalise(images, spec.mean, spec.std, jnp.dtype(config.model.dtype)))[0]

    return in_precision(config.train.matmul_precision, logits)


def any_batch(run: Run) -> jax.ShapeDtypeStruct:
    """Returns the images that an exported function takes: `(b, H, W, C)` uint8 for any `b`."""
    (batch,) = jax_export.symbolic_shape("b")
    return jax.ShapeDtypeStruct((batch, *run.config.model.image_shape), np.uint8)


def difference(run: Run, exported: Callable[[Images], Any]) -> float:
    """Returns the largest difference of an exported network's logits from those of the run, on images of noise.

    `exported` is the exported network, read back from its file: images to logits; it is called with several images and
    with one. UserError if the difference is more than rounding.
    """
    images = selfcheck.noise(SAMPLE, tuple(run.config.model.image_shape))
    expected = run.logits(images)
    differences = [np.abs(np.asarray(exported(images[:n])) - expected[:n]).max() for n in (SAMPLE, 1)]
    relative = min(ROUNDED, selfcheck.allowed(run.config.model.dtype, run.config.train.matmul_precision, None))
    largest, most = float(max(differences)), relative * float(np.abs(expected).max())
    if not largest <= most:
        raise UserError(f"the exported network's logits differ by {largest:.2g}, more than rounding ({most:.2g}): bug")
    return largest
