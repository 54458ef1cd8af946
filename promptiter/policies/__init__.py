"""Policies: which candidates to accept, when to stop, and how the final test decides. They compose with `&` and `|`."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
