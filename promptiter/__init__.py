"""Backpropagation for agents: find the step that failed, patch the text behind it, keep only what is proven better.

Importing this package does no work; names are loaded when they are first used.
"""

from __future__ import annotations

from typing import Any

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("promptiter")
    raise AttributeError(f"module 'promptiter' has no attribute {name!r}")
