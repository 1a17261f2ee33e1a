"""Classifiers made of self-attention alone, with relative position encodings (arXiv 1911.03584).

Heads and layers count from 0 in arrays and in the arguments of functions, from 1 in tables and figures.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_cnn_jax import lazy

if TYPE_CHECKING:
    import numpy as np
    from ml_collections import ConfigDict

    from attn_cnn_jax.instrument.inspect import inspect
    from attn_cnn_jax.interop.export import export
    from attn_cnn_jax.models import AttentionClassifier, ResNet
    from attn_cnn_jax.page.build import show
    from attn_cnn_jax.runs.load import load_run
    from attn_cnn_jax.runs.run import Run

__all__ = ["create_model", "export", "inspect", "load_pretrained", "load_run", "read_image", "show", "train"]


__getattr__, __dir__ = lazy.attributes(
    __name__,
    {
        "config": "config",
        "load_run": "runs.load",
        "show": "page.build",
        "export": "interop.export",
        "inspect": "instrument.inspect",
    },
)


def load_pretrained(name: str) -> "Run":
    """Returns a trained network that is part of the package, without a download; see `load_run`.

    Args:
      name: "digits", "cifar10" or "cifar10_maps16", small quadratic networks. Their cards are
        attn_cnn_jax/pretrained/NAME/README.md.

    Raises:
      UserError: for any other name; lists the names that there are.
    """
    from attn_cnn_jax.runs.load import load_run

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


def read_image(path: "str | Path", config_or_run: "ConfigDict | Run") -> "np.ndarray":
    """Returns an image file as `prepare` and `predict` read it: uint8 `(H, W, C)`, cropped and resized to the network.

    Args:
      path: of a file in any format that Pillow reads.
      config_or_run: a run, or a configuration: of one's own images `config.dataset.image_size` is the size.

    Raises:
      UserError: where the file is not there, or cannot be read as an image; for a configuration that has no size.
    """
    from attn_cnn_jax.config.checks import image_shape
    from attn_cnn_jax.data.image_files import from_file

    config: Any = getattr(config_or_run, "config", config_or_run)
    # A run has its network's size, whatever that of its data set is.
    shape = image_shape(config) if config is config_or_run else tuple(config.model.image_shape)
    return from_file(path, shape, tuple(config.dataset.range)).pixels


def train(config: "ConfigDict | str", workdir: "str | Path") -> "Run":
    """Trains as a configuration describes, from the newest checkpoint in `workdir` on; returns the trained run.

    Args:
      config: the name of a file in configs/, such as "digits"; or what its `get_config()` or
        `attn_cnn_jax.config.attention_config()` returns.
      workdir: the run directory; created if need be.

    Raises:
      UserError: for a configuration, data or a run directory that cannot be trained with.
      SystemExit: after Ctrl-C, once the step is saved: the same call continues there.
    """
    from attn_cnn_jax.runs.load import load_run
    from attn_cnn_jax.training import loop

    if isinstance(config, str):
        from attn_cnn_jax.config.shipped import shipped

        config = shipped(config)
    loop.run(config, workdir)
    return load_run(workdir)
