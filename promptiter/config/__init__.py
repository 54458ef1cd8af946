"""promptiter.yaml: a run in one file, and how it is built."""
