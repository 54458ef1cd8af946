"""Agents that read one fixed file: candidates are written there, and the baseline is restored."""
