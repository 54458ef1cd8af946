"""promptiter.yaml: a run in one file, read and checked, and what is built from it."""
