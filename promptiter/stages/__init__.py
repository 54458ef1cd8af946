"""The replaceable stages of backpropagation: their contracts, the data they exchange, and the built-in ones."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
