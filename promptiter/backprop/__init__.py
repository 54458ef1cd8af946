"""Backpropagation over recorded traces: losses in; gradients, signals and patches out."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
