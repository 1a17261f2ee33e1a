"""Attributes of a package that are imported on their first use, so that what does not need JAX does not wait for it."""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def attributes(package: str, modules: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package, from the names of attributes and of the modules inside it.

    A name that is also its module's is the module. Type checkers read the same imports under `TYPE_CHECKING`.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{modules[name]}")
        return module if name == modules[name] else getattr(module, name)

    return get, lambda: sorted({*vars(sys.modules[package]), *modules})
