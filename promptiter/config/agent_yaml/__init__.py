"""agent.yaml, the agent file of HoloDeck, read as a promptiter.yaml.

`sections` has its keys, `axes` the places that may change, `agent` builds the agent, `metrics` and `graders` its
metrics, `checks` what must hold before a run starts, and `conversion` the keys of promptiter.yaml.
"""
