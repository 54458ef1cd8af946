"""Names of a package that are loaded when they are first used, so that importing the package does no work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package: `modules` says, per module below it, which names come from there."""

    def load(name: str) -> Any:
        for module, names in modules.items():
            if name in names.split():
                value = getattr(import_module(f"{package}.{module}"), name)
                setattr(sys.modules[package], name, value)
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
