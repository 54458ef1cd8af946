"""Models: the gateway that every model and tool call passes through; prices, budgets, rate limits, the cache."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
