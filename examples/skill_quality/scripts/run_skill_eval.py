"""Loads the skill as an agent would, and writes what it found to work/skill.json."""

import json
import re
import sys
from pathlib import Path

text = Path("skills/release-notes/SKILL.md").read_text(encoding="utf-8")
head = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
if head is None or "name:" not in head[1]:
    sys.exit("the skill has no front matter with a name")
body = text[head.end() :]
parts = re.split(r"^##? (.+)$", body, flags=re.MULTILINE)[1:]
sections = {name: len(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}
found = {"sections": sections, "body": body}
Path("work").mkdir(exist_ok=True)
Path("work/skill.json").write_text(json.dumps(found), encoding="utf-8")
print(f"loaded a skill with {len(found['sections'])} sections")
