"""JAX functions evaluated with NumPy in double precision: what compiled programs are held against."""

from attn_cnn_jax.reference.jaxpr import evaluate, scan_counts

__all__ = ["evaluate", "scan_counts"]
