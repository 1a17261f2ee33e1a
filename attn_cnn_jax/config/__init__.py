"""What a run is told: the base configuration, what each value may be, and the checks before any work."""

from attn_cnn_jax.config.base import attention_config, resnet_config, with_defaults
from attn_cnn_jax.config.checks import complete, validate

__all__ = ["attention_config", "complete", "resnet_config", "validate", "with_defaults"]
