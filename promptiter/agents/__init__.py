"""Agents: the protocol, decorated functions, the built-in graph runtime, and in-place agents."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
