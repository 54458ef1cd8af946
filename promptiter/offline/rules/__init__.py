"""Patches from evidence: rules that part good outputs from bad ones, asked for in plain sentences."""
