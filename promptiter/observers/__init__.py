"""Observers of a run: each has one method, `observe(event)`. The payload of an event has a class for each type."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
