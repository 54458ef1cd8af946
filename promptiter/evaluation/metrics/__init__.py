"""Metrics: text and JSON matching, tool trajectories, judges, and the file that configures them."""
