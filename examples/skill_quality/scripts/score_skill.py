"""Scores the skill by rubric.md, and prints one JSON object."""

import json
import re
from pathlib import Path

MOST_WORDS = 20  # of a clear sentence
FEWEST_WORDS = 5  # of a section

skill = json.loads(Path("work/skill.json").read_text(encoding="utf-8"))
points = re.findall(r"^- ([^:\n]+): (.+)$", Path("rubric.md").read_text(encoding="utf-8"), re.MULTILINE)
cases = [
    {
        "name": name,
        "passed": skill["sections"].get(name, 0) >= FEWEST_WORDS,
        "expected": f"## {name}\n\n{wanted}",
        "reason": f"the section {name!r} is missing or empty",
        "file": "skills/release-notes/SKILL.md",
    }
    for name, wanted in points
]
sentences = [each for each in re.split(r"(?<=[.!?])\s+|\n+", skill["body"]) if each.strip() and each[0] != "#"]
clarity = sum(len(each.split()) <= MOST_WORDS for each in sentences) / max(1, len(sentences))
coverage = sum(case["passed"] for case in cases) / len(cases)
violations = len(re.findall(r"TODO|lorem ipsum", skill["body"]))
metrics = {
    "clarity": round(clarity, 3),
    "coverage": coverage,
    "violation_count": violations,
    "length_tokens": len(re.findall(r"\w+|[^\w\s]", skill["body"])),
}
print(json.dumps({"score": round((2 * coverage + clarity) / 3, 3), "metrics": metrics, "cases": cases}))
