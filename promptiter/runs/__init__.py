"""Runs that are kept: run folders and other stores, and loading, resuming and listing runs."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
