"""The engine: one optimization run, the services it gives a search, and the policies that decide on it."""
