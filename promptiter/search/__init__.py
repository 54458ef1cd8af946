"""Search algorithms: backprop rounds (the default), GEPA, shorter prompts, cheaper models."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
