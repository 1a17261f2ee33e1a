"""The one place where a configuration becomes a network: modules themselves take explicit arguments."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from attn_cnn_jax.models.attention.encoding import Encoding, Sizes
from attn_cnn_jax.models.classifier import AttentionClassifier
from attn_cnn_jax.models.encodings import encoding_class
from attn_cnn_jax.models.resnet import ResNet

# Values of `config.model` that AttentionClassifier takes under the same name.
SAME_NAME = (
    "image_shape",
    "num_classes",
    "encoding",
    "content",
    "gate",
    "share_tables",
    "num_layers",
    "num_heads",
    "hidden_size",
    "intermediate_size",
    "activation",
    "layer_norm_epsilon",
    "stem",
    "downsample",
    "dropout",
    "attention_dropout",
    "attention_dropout_on",
    "implementation",
    "init",
    "locality",
    "init_values",
)


def create_model(model: ConfigDict, *, rngs: nnx.Rngs) -> AttentionClassifier | ResNet:
    """Returns the network that the `model` part of a configuration describes.

    Args:
      model: `config.model` of any file in configs/.
      rngs: source of the initial parameters, `nnx.Rngs(seed)`.
    """
    dtype = jnp.dtype(model.dtype)
    if model.name == "resnet":
        return ResNet(
            depth=model.depth,
            width=model.width,
            image_channels=model.image_shape[2],
            num_classes=model.num_classes,
            layers=model.layers,
            sharpness=model.sharpness,
            dtype=dtype,
            rngs=rngs,
        )
    values = {name: frozen(model[name]) for name in SAME_NAME}
    options = encoding_options(model)
    return AttentionClassifier(**values, encoding_options=options, head_size=head_size(model), dtype=dtype, rngs=rngs)


class SameKey(nnx.Rngs):
    """Gives one key for all parameters, which does where only their shapes matter.

    There the counter of `nnx.Rngs` is traced. Whenever it moves, JAX writes an error message about all operations so
    far, which Flax drops: the time would grow with the square of the number of parameters.
    """

    def params(self) -> jax.Array:
        """Returns the key."""
        return jax.random.key(0)


def abstract_model(model: ConfigDict) -> AttentionClassifier | ResNet:
    """Returns the network that `config.model` describes, with shapes and types in the place of arrays."""
    return nnx.eval_shape(lambda: create_model(model, rngs=SameKey(0)))


def encoding_of(model: ConfigDict) -> type[Encoding]:
    """Returns the class of the encoding that `config.model` names."""
    return encoding_class(model.encoding)


def encoding_options(model: ConfigDict) -> Mapping[str, Any]:
    """Returns the values of the encoding's own options."""
    return {name: frozen(model[name]) for name in encoding_of(model).options}


def frozen(value: Any) -> Any:
    """Returns a list, which JSON and checkpoints make of a tuple, as a tuple; other values as they are."""
    return tuple(value) if isinstance(value, list) else value


def heads_by_layer(model: ConfigDict) -> tuple[int, ...]:
    """Returns the number of heads of every layer; `config.model` has one for all or, after pruning, one per layer."""
    heads = model.num_heads
    return (heads,) * model.num_layers if isinstance(heads, int) else tuple(heads)


def head_size(model: ConfigDict) -> int:
    """Returns `D_h`; 0 in the configuration stands for the hidden size, as in the paper."""
    return model.head_size or model.hidden_size


def grid(model: ConfigDict) -> tuple[int, int]:
    """Returns rows and columns of the pixels that attention works on: the picture's over the down-sampling."""
    return model.image_shape[0] // model.downsample, model.image_shape[1] // model.downsample


def depends_on_content(model: ConfigDict) -> bool:
    """Returns whether the attention of an attention network differs from picture to picture."""
    return model.content or encoding_of(model).depends_on_content_with(encoding_options(model))


def factorises(model: ConfigDict) -> bool:
    """Returns whether the attention of an attention network is a product of a row and a column softmax."""
    return encoding_of(model).factorises and not model.content


def sizes(model: ConfigDict, num_heads: int) -> Sizes:
    """Returns the sizes of a layer with so many heads."""
    return Sizes(num_heads, model.hidden_size, head_size(model), grid(model), jnp.dtype(model.dtype))
