"""Configurations: every value of the paper on one page, what each may be, the checks, and the network they describe."""

from typing import TYPE_CHECKING

from attn_cnn_jax import lazy
from attn_cnn_jax.config.base import attention_config, resnet_config, with_defaults

if TYPE_CHECKING:
    from attn_cnn_jax.config.checks import complete, spec_of, validate
    from attn_cnn_jax.config.network import create_model

__all__ = ["attention_config", "complete", "create_model", "resnet_config", "spec_of", "validate", "with_defaults"]

__getattr__, __dir__ = lazy.attributes(
    __name__, dict.fromkeys(("complete", "spec_of", "validate"), "checks") | {"create_model": "network"}
)
