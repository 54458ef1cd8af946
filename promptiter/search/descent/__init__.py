"""Coordinate descent: phases of numeric trials, by studies, and of textual trials, by critic and applier."""
