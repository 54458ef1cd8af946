"""Observers of a run: each has one method, `observe(event)`. What an event says is its `payload`, one class per type."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
