"""Sources: where the value of a surface is stored outside the agent.

A source is a whole file, a field inside a file (a Markdown section, a YAML or JSON field, a Python literal), or a pair
of callbacks.
"""

from promptiter.sources.callback import CallbackSource, Source
from promptiter.sources.file import FileSource, sync_folder

__all__ = ["CallbackSource", "FileSource", "Source", "sync_folder"]
