"""Agents that are called as they are: a function, a command or an HTTP service."""
