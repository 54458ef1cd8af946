"""The process that keeps one private copy: it makes the copy, runs commands in it, and ends what they leave behind.

It is started anew for each copy, so these modules import the standard library only, and little of it.
"""
