"""Runs at rest: the files that a run leaves behind."""
