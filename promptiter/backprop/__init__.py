"""Backprop: losses from failed scores, carried back along the trace, merged per surface, turned into patches."""
