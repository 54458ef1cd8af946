"""The file task of document 002 in a prepared folder: a skill, a runner that reads it, and a scorer with JSON.

The score is the share of wanted sections that the skill has. A text that says `CRASH` makes the runner fail, one that
says `HANG` makes it wait, and one with `TODO` violates a constraint.
"""

from __future__ import annotations

from pathlib import Path

AS_PRINTED = """\
id: skill-quality
description: Optimize a skill markdown file against a rubric.
artifacts:
  include:
    - skills/writing/SKILL.md
  exclude:
    - work/**
  max_files_per_iteration: 2
mutation:
  mode: direct_edit
  allowed_file_types:
    - .md
    - .txt
    - .yaml
    - .py
  max_changed_lines: 120
runner:
  command: "python scripts/run_skill_eval.py"
  cwd: "."
  timeout_seconds: 300
scorer:
  type: command
  command: "python scripts/score_skill.py"
  parse:
    format: json
    score_field: "score"
    metrics_field: "metrics"
objective:
  primary_metric: score
  direction: maximize
constraints:
  - metric: violation_count
    op: "<="
    value: 0
  - metric: length_tokens
    op: "<="
    value: 2500
policy:
  keep_if: "better_primary"
  tie_breakers:
    - lower: violation_count
    - lower: length_tokens
  on_failure: discard
budget:
  max_iterations: 50
  max_failures: 10
logging:
  results_file: "work/results.jsonl"
  candidate_dir: "work/candidates"
"""
"""The specification of document 002, to the letter."""

SECTIONS = ("Purpose", "When to use", "Steps", "Examples", "Checks")

SKILL = """\
# Writing

## Purpose

Write clear release notes. Write them for readers who were not there. Keep every note short.

Notes that nobody reads help nobody, which is why this skill exists at all.
"""

RUNNER = """\
import json, pathlib, sys, time

text = pathlib.Path("skills/writing/SKILL.md").read_text(encoding="utf-8")
if "CRASH" in text:
    sys.exit("the skill cannot be loaded")
if "HANG" in text:
    time.sleep(600)
pathlib.Path("work").mkdir(exist_ok=True)
sections = [line[3:].strip() for line in text.splitlines() if line.startswith("## ")]
pathlib.Path("work/run.json").write_text(json.dumps({"sections": sections, "words": len(text.split())}))
print(f"the skill has {len(sections)} sections")
"""

SCORER = f"""\
import json, pathlib

WANTED = {SECTIONS!r}
found = json.loads(pathlib.Path("work/run.json").read_text())
text = pathlib.Path("skills/writing/SKILL.md").read_text(encoding="utf-8")
cases = [
    {{"name": name, "passed": name in found["sections"], "expected": f"## {{name}}\\n\\nTo be written.",
     "file": "skills/writing/SKILL.md"}}
    for name in WANTED
]
score = sum(case["passed"] for case in cases) / len(cases)
metrics = {{"violation_count": text.count("TODO"), "length_tokens": found["words"]}}
print(json.dumps({{"score": score, "metrics": metrics, "cases": cases}}))
"""


def make_skill_folder(folder: Path, *, skill: str = SKILL, task: str = AS_PRINTED) -> Path:
    """Prepare the folder of the task, and return it."""
    files = {
        "task.yaml": task,
        "skills/writing/SKILL.md": skill,
        "scripts/run_skill_eval.py": RUNNER,
        "scripts/score_skill.py": SCORER,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder
