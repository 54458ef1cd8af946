"""The files of `promptiter task init`: a skill, a rubric, and the scripts that run and score it, offline."""

from __future__ import annotations

from collections.abc import Mapping

TASK = """\
# yaml-language-server: $schema=task.schema.json
id: skill-quality
description: Improve a skill for writing release notes. A reader who was not there must understand each note.

artifacts:
  include:
    - skills/release-notes/SKILL.md
  max_files_per_iteration: 1

mutation:
  mode: direct_edit               # a model edits with --model NAME, or with `models: NAME`; else simple rules do
  allowed_file_types: [.md]
  max_changed_lines: 40

runner:
  command: python scripts/run_skill_eval.py
  timeout_seconds: 60

scorer:
  type: command
  command: python scripts/score_skill.py

objective:
  primary_metric: score
  direction: maximize

constraints:
  - {metric: violation_count, op: "<=", value: 0}
  - {metric: length_tokens, op: "<=", value: 400}

guards:
  max_keyword_share: 0.2
  required_sections: ["Release notes"]

policy:
  keep_if: better_primary
  tie_breakers:
    - lower: length_tokens

budget:
  max_iterations: 12
  max_failures: 3

logging:
  results_file: work/results.jsonl
  candidate_dir: work/candidates
"""

SKILL = """\
---
name: release-notes
description: Write release notes.
---

# Release notes

Write one note for each change. Say what changed and what the reader has to do. It is important to keep in mind that \
every single note should of course always be written with great care and attention.
"""

RUBRIC = """\
# Rubric

Each point names a section that the skill needs, and what it says.

- When to use: Use this skill when a change is visible to users.
- Steps: List the changes, group them by feature, then write one sentence for each.
- Example: Search finds words with typos. No action is needed.
- Check: Read each note aloud, and cut what nobody would miss.
"""

RUNNER = '''\
"""Loads the skill as an agent would, and writes what it found to work/skill.json."""

import json
import re
import sys
from pathlib import Path

text = Path("skills/release-notes/SKILL.md").read_text(encoding="utf-8")
head = re.match(r"---\\n(.*?)\\n---\\n", text, re.DOTALL)
if head is None or "name:" not in head[1]:
    sys.exit("the skill has no front matter with a name")
body = text[head.end() :]
parts = re.split(r"^##? (.+)$", body, flags=re.MULTILINE)[1:]
sections = {name: len(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}
found = {"sections": sections, "body": body}
Path("work").mkdir(exist_ok=True)
Path("work/skill.json").write_text(json.dumps(found), encoding="utf-8")
print(f"loaded a skill with {len(found['sections'])} sections")
'''

SCORER = '''\
"""Scores the skill by rubric.md, and prints one JSON object."""

import json
import re
from pathlib import Path

MOST_WORDS = 20  # of a clear sentence
FEWEST_WORDS = 5  # of a section

skill = json.loads(Path("work/skill.json").read_text(encoding="utf-8"))
points = re.findall(r"^- ([^:\\n]+): (.+)$", Path("rubric.md").read_text(encoding="utf-8"), re.MULTILINE)
cases = [
    {
        "name": name,
        "passed": skill["sections"].get(name, 0) >= FEWEST_WORDS,
        "expected": f"## {name}\\n\\n{wanted}",
        "reason": f"the section {name!r} is missing or empty",
        "file": "skills/release-notes/SKILL.md",
    }
    for name, wanted in points
]
sentences = [each for each in re.split(r"(?<=[.!?])\\s+|\\n+", skill["body"]) if each.strip() and each[0] != "#"]
clarity = sum(len(each.split()) <= MOST_WORDS for each in sentences) / max(1, len(sentences))
coverage = sum(case["passed"] for case in cases) / len(cases)
violations = len(re.findall(r"TODO|lorem ipsum", skill["body"]))
metrics = {
    "clarity": round(clarity, 3),
    "coverage": coverage,
    "violation_count": violations,
    "length_tokens": len(re.findall(r"\\w+|[^\\w\\s]", skill["body"])),
}
print(json.dumps({"score": round((2 * coverage + clarity) / 3, 3), "metrics": metrics, "cases": cases}))
'''

FILES: Mapping[str, str] = {
    "task.yaml": TASK,
    "rubric.md": RUBRIC,
    "skills/release-notes/SKILL.md": SKILL,
    "scripts/run_skill_eval.py": RUNNER,
    "scripts/score_skill.py": SCORER,
}
"""The starter by path."""
