"""Backpropagation for agents: find the step that failed, patch the text behind it, adopt only what a test shows.

Everyday names are here. The rest is one level down: `promptiter.agents`, `.evaluation`, `.policies`, `.stages`,
`.search`, `.llm`, `.offline`, `.runs`. Names are imported when they are first used: importing the package does no work.
"""

from typing import Any

from traces.lazy import lazy_package

_load, __dir__ = lazy_package(__name__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("promptiter")
    return _load(name)
