"""The cache of model and tool answers."""
