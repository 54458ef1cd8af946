"""Evaluation: eval sets, metrics, and running an agent over cases."""
