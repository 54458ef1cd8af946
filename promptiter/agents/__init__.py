"""Agents: what can be run under a profile, decorated functions, and the built-in graph runtime."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
