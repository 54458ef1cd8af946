"""Stages that are commands: they get a folder with the evidence, and write their answer into it."""
