"""Eval sets: cases, the file formats they are read from, splits and health checks."""
