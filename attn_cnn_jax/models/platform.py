"""The platform that a network is compiled for: on it depends which form of attention is cheapest."""

from typing import TypeVar

from flax import nnx

from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.classifier import AttentionClassifier, Block
from attn_cnn_jax.models.layers import Linear

Model = TypeVar("Model", bound=nnx.Module)


def for_platform(model: Model, platform: str) -> Model:
    """Returns a copy that computes in the form for a platform; without dropout the results are the same to rounding.

    On GPUs and TPUs the activations of a network whose attention does not depend on content have pixels before
    pictures, so that averages over pixels need no transpose. On GPUs norms keep what their gradients read, instead of
    computing it again. On TPUs dropout draws the bits of each entry on its own.
    Without this function attention takes the form for JAX's default backend, also where it is compiled for other
    devices.

    Args:
      model: left as it is; tracers too.
      platform: "cpu", "gpu" or "tpu", as `jax.Device.platform` has it.
    """
    model = nnx.clone(model)
    pixels_first = platform != "cpu" and isinstance(model, AttentionClassifier) and not model.depends_on_content
    for _, module in nnx.iter_modules(model):
        if isinstance(module, SelfAttention | Block):
            module.platform = platform
        if isinstance(module, Block):
            module.rematerialised = platform != "gpu"
        if isinstance(module, AttentionClassifier | SelfAttention | Linear):
            module.pixels_first = pixels_first
    return model
