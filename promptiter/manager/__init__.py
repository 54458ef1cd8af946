"""Runs in flight: starts them in the background, watches, cancels and resumes them. See docs/manager.md."""

from promptiter.manager.app import App, ConfiguredApp, EngineApp, PreparedRun
from promptiter.manager.manager import Manager

__all__ = ["App", "ConfiguredApp", "EngineApp", "Manager", "PreparedRun"]
