"""Watchers of a run: each is one `observe(event)`."""
