"""Search algorithms: backprop rounds (the default), GEPA, few-shot examples, shorter prompts, cheaper models."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
