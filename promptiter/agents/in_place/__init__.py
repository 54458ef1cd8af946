"""Agents that read their prompts from a fixed place: candidates are written there, and the baseline is restored."""
