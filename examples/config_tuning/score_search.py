"""Scores the answers: what they cost, and how many are right."""

import json
from pathlib import Path

found = json.loads(Path("work/answers.json").read_text(encoding="utf-8"))
metrics = {"steps": found["steps"], "accuracy": sum(found["right"]) / len(found["right"])}
print(json.dumps({"metrics": metrics}))
