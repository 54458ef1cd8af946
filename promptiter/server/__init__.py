"""Runs over HTTP: the API of a Manager, and its clients. Serving needs `promptiter[server]`, clients do not."""

from importlib.util import find_spec
from typing import Any

from traces.lazy import lazy_package

_load, __dir__ = lazy_package(__name__)
_SERVING = ("create_application", "serve", "Limits", "ServerOptions")
"""Names that need the packages of the extra."""


def __getattr__(name: str) -> Any:
    if name in _SERVING:
        check_packages()
    return _load(name)


def check_packages() -> None:
    """Raise SetupError if a package that a server needs is not installed."""
    from promptiter.errors import SetupError

    missing = [each for each in ("fastapi", "uvicorn") if find_spec(each) is None]
    if missing:
        raise SetupError(f"serving runs needs {' and '.join(missing)}; run: pip install 'promptiter[server]'")
