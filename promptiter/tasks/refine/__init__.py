"""Refinement of one finished result: the same task is run again with the prior deliverable and what was wrong with it.

Optimization changes the agent; refinement leaves the agent alone and changes one deliverable. `loop` is the heart.
"""
