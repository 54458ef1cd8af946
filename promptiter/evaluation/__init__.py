"""Evaluation: eval sets, metrics, and an Evaluator that runs an agent over cases and scores it."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
