"""Classifiers made of self-attention alone, with relative position encodings (arXiv 1911.03584)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_cnn_jax.models import AttentionClassifier, ResNet
    from attn_cnn_jax.runs.run import Run

__all__ = ["create_model", "load_pretrained", "load_run"]

# What these functions need is imported on the first call, so that commands which need no model start fast.


def load_run(workdir: "str | Path", step: int | str = "latest", seed: int | None = None) -> "Run":
    """Restores a run that `train.py` left: `config`, `step`, `model`, `predict`, `attention`, `export`.

    Args:
      workdir: the run directory, or a folder that `attn-cnn export --format=safetensors` wrote.
      step: "latest", "best" or a number; see attn_cnn_jax.runs.load.
      seed: which network of a run of several seeds.
    """
    from attn_cnn_jax.runs.load import load_run

    return load_run(workdir, step, seed)


def load_pretrained(name: str) -> "Run":
    """Returns a trained network that is part of the package, without a download; see `load_run`.

    Args:
      name: "digits", "cifar10" or "cifar10_maps16", small quadratic networks. Their cards are
        attn_cnn_jax/pretrained/NAME/README.md.

    Raises:
      UserError: for any other name; lists the names that there are.
    """
    from attn_cnn_jax.runs.load import load_run
    from attn_cnn_jax.runs.pretrained import folder_of

    return load_run(folder_of(name))


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
