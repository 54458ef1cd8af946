"""Lazy packages: names are listed once, in the package's `__init__.pyi`, and imported when they are first used.

Type checkers and editors read the stub. At run time nothing is imported, and the stub is not read, before the package
is first asked for a name:

    __getattr__, __dir__ = lazy_package(__name__)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_package(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names are listed in its stub."""

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(_stub_names(package))
        module = None if name.startswith("__") else _stub_names(package).get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(_stub_names(package))


@cache
def _stub_names(package: str) -> dict[str, str]:
    """Which module each name of the stub comes from."""
    import ast
    from pathlib import Path

    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    imports = [node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
