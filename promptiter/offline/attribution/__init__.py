"""Blame without a model: values and formats are followed back through a trace."""
