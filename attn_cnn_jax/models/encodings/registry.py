"""The registry that finds an encoding by its name, `config.model.encoding`."""

from collections.abc import Callable
from typing import TypeVar

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.encoding import Encoding

REGISTRY: dict[str, type[Encoding]] = {}
EncodingClass = TypeVar("EncodingClass", bound=type[Encoding])


def register(name: str) -> Callable[[EncodingClass], EncodingClass]:
    """Class decorator: makes an encoding available as `config.model.encoding=NAME`."""

    def add(encoding: EncodingClass) -> EncodingClass:
        known = REGISTRY.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (encoding.__module__, encoding.__qualname__):
            raise UserError(f"encoding {name!r} is registered twice, by {known.__module__} and {encoding.__module__}")
        REGISTRY[name] = encoding
        return encoding

    return add


def encoding_class(name: str) -> type[Encoding]:
    """Returns the class registered under a name; UserError where there is none."""
    if name not in REGISTRY:
        raise UserError(
            f"encoding {name!r} is not registered: allowed are {', '.join(sorted(REGISTRY))}\n"
            "if it is your own, import the file that registers it first"
        )
    return REGISTRY[name]
