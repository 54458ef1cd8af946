"""The artifacts of HoloDeck's optimizer: what `--layout 000` and `promptiter test optimize` write.

`rows` are the trials as in trials.jsonl, `candidate_files` writes candidates as agent.yaml files, `report` is
report.md, and `layout` the observer that writes all of them.
"""
