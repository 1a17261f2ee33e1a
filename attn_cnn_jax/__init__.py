"""Classifiers made of self-attention alone, with relative position encodings (arXiv 1911.03584).

Heads and layers count from 0 in arrays and in the arguments of functions, from 1 in tables and figures.
"""

# What these functions need is imported on the first call, so that commands which need no model start fast.

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from attn_cnn_jax.instrument import Report
    from attn_cnn_jax.models import AttentionClassifier, ResNet
    from attn_cnn_jax.runs.run import Run

__all__ = ["create_model", "export", "inspect", "load_pretrained", "load_run", "show", "train"]


def load_run(workdir: "str | Path", step: int | str = "latest") -> "Run":
    """Returns a trained run: `config`, `step`, `model`, `predict`, `evaluate`, `attention`, `intermediates`.

    Args:
      workdir: the run directory, a folder that `export` wrote as safetensors, or "pretrained:NAME".
      step: "latest", "best" (by validation accuracy) or the number of a checkpoint.

    Raises:
      UserError: if there is no such run or step, or its checkpoint is damaged.
    """
    from attn_cnn_jax.runs.load import load_run

    return load_run(workdir, step)


def load_pretrained(name: str) -> "Run":
    """Returns a trained network that is part of the package, without a download; see `load_run`.

    Args:
      name: "digits", "cifar10" or "cifar10_maps16", small quadratic networks. Their cards are
        attn_cnn_jax/pretrained/NAME/README.md.

    Raises:
      UserError: for any other name; lists the names that there are.
    """
    return load_run(f"pretrained:{name}")


def create_model(name: str = "attention", *, seed: int = 0, **values: Any) -> "AttentionClassifier | ResNet":
    """Returns a new network: `logits, intermediates = model(images)`, with `images` `(b, H, W, C)` floating point.

    Args:
      name: "attention", by default the paper's quadratic network, or "resnet", by default ResNet-18.
      seed: of the initial parameters.
      **values: keys of `config.model` that differ, such as `encoding="learned"`, `image_shape=(8, 8, 1)`,
        `num_heads=4`; `attn-cnn train --help` lists them.

    Raises:
      UserError: for an unknown name or key, or a value that is not allowed.
    """
    from flax import nnx

    from attn_cnn_jax import config
    from attn_cnn_jax.errors import UserError

    kinds = {"attention": config.attention_config, "resnet": config.resnet_config}
    if name not in kinds:
        raise UserError(f"no network is called {name!r}: allowed are {', '.join(kinds)}")
    described = kinds[name](**values)
    config.validate(described)
    return config.create_model(described.model, rngs=nnx.Rngs(seed))


def train(config: "ConfigDict", workdir: "str | Path") -> "Run":
    """Trains as a configuration describes, from the newest checkpoint in `workdir` on; returns the trained run.

    Args:
      config: as `get_config()` of a file in configs/ or `attn_cnn_jax.config.attention_config()` returns it.
      workdir: the run directory; created if need be.

    Raises:
      UserError: for a configuration, data or a run directory that cannot be trained with.
    """
    from attn_cnn_jax.training import loop

    loop.run(config, workdir)
    return load_run(workdir)


def show(run: "Run", images: int = 8, data_dir: str | None = None, height: int = 800) -> Any:
    """Returns the interactive page of a run's network, which a notebook shows in place.

    Args:
      run: as `load_run` returns it.
      images: number of test images to choose from.
      data_dir: folder of the data set, if not the one used in training. Without the data set there are no test
        images; a network whose attention depends on content needs some.
      height: of the frame, in pixels.

    Raises:
      UserError: if the network has no attention to show, or too much.
    """
    from attn_cnn_jax.page import inline

    return inline.show(run, images, data_dir, height)


def export(run: "Run", out: "str | Path", format: str = "safetensors", note: str = "") -> str:
    """Writes a run's network for use elsewhere; returns a line that says what.

    Args:
      run: as `load_run` returns it.
      out: a folder (for "pytorch" a file) that does not exist yet; it appears whole or not at all.
      format: "safetensors", "jax" (StableHLO), "onnx" or "pytorch" (the authors' release).
      note: a sentence on data or training for the model card.

    Raises:
      UserError: if `out` exists, a package is missing, or the format has no such network.
    """
    from attn_cnn_jax.interop.export import export

    return export(run, out, format, note)


def inspect(attention_or_model: Any, images: Any = None, **options: Any) -> "Report":
    """Says how convolutional the attention of any network is; see `attn_cnn_jax.instrument.inspect`.

    Args:
      attention_or_model: attention as arrays, `(layers, images, heads, q, k)`, or a network: a run, a Flax NNX network
        with `nnx.MultiHeadAttention`, a PyTorch network such as timm's.
      images: of a network, as it takes them.
      **options: `grid` and `prefix` of the tokens, `kernel_size`, `labels`.

    Raises:
      UserError: for what is not attention over a grid of patches.
    """
    from attn_cnn_jax import instrument

    return instrument.inspect(attention_or_model, images, **options)
