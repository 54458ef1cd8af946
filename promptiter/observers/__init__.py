"""Observers of a run: each has one method, `observe(event)`."""
