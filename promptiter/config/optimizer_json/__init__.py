"""optimizer.json, the configuration file of AgentOptimizer, read as a promptiter.yaml.

`sections` has its keys, `conversion` says which keys of promptiter.yaml they become.
"""
