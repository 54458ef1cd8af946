"""Private copies of a folder, in which commands can change nothing else and leave no process behind."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
