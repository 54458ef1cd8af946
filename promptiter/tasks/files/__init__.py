"""File tasks: the "agent" is a folder of files, and a script scores it.

`task` has the words, `workspace` finds the artifacts, `measurement` runs the commands of a candidate in a private copy,
and `file_scorer` turns what they print into the scores and figures of a run.
"""
