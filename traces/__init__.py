"""Execution traces of agents: a model, a graph, a recorder, files, and OpenTelemetry.

Names are listed in `__init__.pyi` and imported when they are first used, so importing the package does no work.
"""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
