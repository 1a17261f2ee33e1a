"""The platform that a network is compiled for: on it depends which form of attention is cheapest."""

from typing import TypeVar

from flax import nnx

from attn_cnn_jax.models.attention.layer import SelfAttention

Model = TypeVar("Model", bound=nnx.Module)


def for_platform(model: Model, platform: str) -> Model:
    """A copy whose attention takes the forms for a platform; the results are the same to rounding.

    Without it a network takes those of JAX's default backend, also where it is compiled for other devices.

    Args:
      model: left as it is; tracers too.
      platform: "cpu", "gpu" or "tpu", as `jax.Device.platform` has it.
    """
    model = nnx.clone(model)
    for _, module in nnx.iter_modules(model):
        if isinstance(module, SelfAttention):
            module.platform = platform
    return model
