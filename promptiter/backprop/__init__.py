"""Backpropagation: losses from failed scores, attributed along the trace, merged per surface, turned into patches."""
