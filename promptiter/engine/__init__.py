"""The engine: one optimization run, the services it gives a strategy, and the policies that decide on it."""
