"""What a run is told: the base configuration, what each value may be, and the checks before any work."""

from attn_cnn_jax.config.base import attention_config, resnet_config, with_defaults
from attn_cnn_jax.config.checks import complete, spec_of, validate
from attn_cnn_jax.config.network import create_model

__all__ = ["attention_config", "complete", "create_model", "resnet_config", "spec_of", "validate", "with_defaults"]
