"""How convolutional is a network? Reads the attention of any network over a grid of patches, and reports."""

from attn_cnn_jax.instrument.report import Report, inspect

__all__ = ["Report", "inspect"]
