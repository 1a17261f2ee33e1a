"""Configurations: every value of the paper on one page, what each may be, the checks, and the network they describe."""

from attn_cnn_jax.config.base import attention_config, resnet_config, with_defaults
from attn_cnn_jax.config.checks import complete, spec_of, validate
from attn_cnn_jax.config.network import create_model

__all__ = ["attention_config", "complete", "create_model", "resnet_config", "spec_of", "validate", "with_defaults"]
