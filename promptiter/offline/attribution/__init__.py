"""Blame from evidence: values and forms followed back through a trace, without a model."""
