"""Models: the one door through which model and tool calls go, what they cost, and the store of their answers."""
