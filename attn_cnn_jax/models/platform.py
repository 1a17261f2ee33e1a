"""The platform that a network is compiled for: on it depends which form of attention is cheapest."""

from typing import TypeVar

from flax import nnx

from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.classifier import Block

Model = TypeVar("Model", bound=nnx.Module)


def for_platform(model: Model, platform: str) -> Model:
    """Returns a copy that computes in the form for a platform; without dropout the results are the same to rounding.

    Without this function attention takes the form for JAX's default backend, also where it is compiled for other
    devices.

    Args:
      model: left as it is; tracers too.
      platform: "cpu", "gpu" or "tpu", as `jax.Device.platform` has it.
    """
    model = nnx.clone(model)
    for _, module in nnx.iter_modules(model):
        if isinstance(module, SelfAttention | Block):
            module.platform = platform
    return model
