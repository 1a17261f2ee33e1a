"""The adapter for a network, by its library."""

from typing import Any

from flax import nnx

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import watch_nnx, watch_run
from attn_cnn_jax.interop.watch import Replace, Watched
from attn_cnn_jax.runs.run import Run


def watch(model: Any, images: Any, replace: Replace | None = None) -> Watched:
    """Runs a network with the adapter for its library.

    Args:
      model: a run of this package, a Flax NNX module or a PyTorch module, in evaluation mode or not: it is run in it.
      images: as the network takes them.
      replace: gives the attention to use in the place of a layer's own.

    Raises:
      UserError: for another kind of network, or one in which no attention was found.
    """
    if isinstance(model, Run):
        watched = watch_run.watch(model, images, replace)
    elif isinstance(model, nnx.Module):
        watched = watch_nnx.watch(model, images, replace)
    elif hasattr(model, "state_dict") and hasattr(model, "modules"):
        from attn_cnn_jax.interop import watch_torch  # imports PyTorch, which the user has

        watched = watch_torch.watch(model, images, replace)
    else:
        raise UserError(
            f"{type(model).__name__} is no network that can be watched: give a run of load_run, a Flax NNX or PyTorch "
            "module, or its attention as arrays (layers, images, heads, q, k)"
        )
    if not watched.layers:
        raise UserError(
            f"no attention was found in {type(model).__name__}: PyTorch networks are seen where they call "
            "scaled_dot_product_attention, nn.MultiheadAttention or a product of a softmax with values, Flax NNX ones "
            "where they have nnx.MultiHeadAttention"
        )
    return watched
