"""The one place where a configuration becomes a network: modules themselves take explicit arguments."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.models.attention.encoding import FactorisingEncoding
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.encodings import REGISTRY, encoding_class
from attn_cnn_jax.models.resnet import ResNet


def create_model(model: ConfigDict, *, rngs: nnx.Rngs) -> AttentionClassifier | ResNet:
    """Returns the network that the `model` part of a configuration describes.

    Args:
      model: `config.model` of any file in configs/.
      rngs: source of the initial parameters, `nnx.Rngs(seed)`.
    """
    # JSON and checkpoints make lists of tuples.
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in model.items()}
    values |= {"dtype": jnp.dtype(values["dtype"]), "rngs": rngs}
    if values.pop("name") == "resnet":
        shape = values.pop("image_shape")
        return ResNet(image_channels=shape[2], **values)
    given = {name: values.pop(name) for kind in REGISTRY.values() for name in kind.options if name in values}
    options = {name: given[name] for name in encoding_class(model.encoding).options}
    if "position_size" in options:
        options["position_size"] = options["position_size"] or model.hidden_size  # as of `head_size`
    values["head_size"] = head_size(model)
    return AttentionClassifier(encoding_options=options, **values)


class SameKey(nnx.Rngs):
    """Gives one key for all parameters, which does where only their shapes matter.

    It takes a quarter of the time: whenever the traced counter of `nnx.Rngs` moves, JAX formats a message about all
    operations so far, which Flax drops.
    """

    def params(self) -> jax.Array:
        """Returns the key."""
        return jax.random.key(0)


def abstract_model(model: ConfigDict) -> AttentionClassifier | ResNet:
    """Returns the network that `config.model` describes, with shapes and types in the place of arrays."""
    return nnx.eval_shape(lambda: create_model(model, rngs=SameKey(0)))


def parameter_size(model: ConfigDict) -> tuple[int, int]:
    """Returns the number of trainable values of the network that `config.model` describes, and of their bytes."""
    arrays = jax.tree.leaves(nnx.state(abstract_model(model), nnx.Param))
    return sum(array.size for array in arrays), sum(array.size * array.dtype.itemsize for array in arrays)


def heads_by_layer(model: ConfigDict) -> tuple[int, ...]:
    """Returns the number of heads of every layer; `config.model` has one for all or, after pruning, one per layer."""
    heads = model.num_heads
    return (heads,) * model.num_layers if isinstance(heads, int) else tuple(heads)


def describe(model: ConfigDict) -> str:
    """Returns what a network is, in words."""
    if model.name == "resnet":
        return f"ResNet-{model.depth} of {model.layers}s"
    counts = heads_by_layer(model)
    heads = "/".join(map(str, counts if len(set(counts)) > 1 else counts[:1]))
    content = f" and content{', gated' if model.gate else ''}" if model.content else ""
    return f"{model.encoding}{content}, {model.num_layers} layers, {heads} heads, hidden size {model.hidden_size}"


def head_size(model: ConfigDict) -> int:
    """Returns `D_h`; 0 in the configuration stands for the hidden size, as in the paper."""
    return model.head_size or model.hidden_size


def grid(model: ConfigDict) -> tuple[int, int]:
    """Returns rows and columns of the pixels that attention works on: the image's over the down-sampling."""
    return model.image_shape[0] // model.downsample, model.image_shape[1] // model.downsample


def factorises(model: ConfigDict) -> bool:
    """Returns whether the attention of an attention network is a product of a row and a column softmax."""
    return issubclass(encoding_class(model.encoding), FactorisingEncoding) and not model.content
