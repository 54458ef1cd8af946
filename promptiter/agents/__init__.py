"""Agents: what can be run under a profile, and the built-in graph runtime."""
