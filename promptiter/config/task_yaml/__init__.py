"""task.yaml, a file task, read as a promptiter.yaml.

`sections` has its keys, `document` reads a file into a FileTask, `conversion` says which keys of promptiter.yaml it
becomes, and `parts` builds the scorer and the log of results.
"""
