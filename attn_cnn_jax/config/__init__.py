"""Configurations: every value of the paper on one page, what each may be, the checks, and the network they describe."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from attn_cnn_jax import lazy
from attn_cnn_jax.config.base import attention_config, resnet_config, with_defaults
from attn_cnn_jax.config.shipped import shipped

if TYPE_CHECKING:
    from attn_cnn_jax.config.checks import complete, spec_of, validate
    from attn_cnn_jax.config.network import create_model

__all__ = [
    "attention_config",
    "complete",
    "create_model",
    "resnet_config",
    "shipped",
    "spec_of",
    "validate",
    "with_defaults",
]

__getattr__, __dir__ = lazy.attributes(
    __name__, dict.fromkeys(("complete", "spec_of", "validate"), "checks") | {"create_model": "network"}
)


class _Callable(ModuleType):
    """This module, which can be called: `attn_cnn_jax.config("digits")` is `shipped("digits")`."""

    def __call__(self, name: str) -> ConfigDict:
        return shipped(name)


sys.modules[__name__].__class__ = _Callable
