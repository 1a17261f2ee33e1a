"""JAX functions evaluated with NumPy in double precision: what compiled programs are held against."""

from attn_cnn_jax.reference.jaxpr import CONTROL, evaluate

__all__ = ["CONTROL", "evaluate"]
