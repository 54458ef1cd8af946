"""The agent: a command-line tool that reads CLAUDE.md and its skills from a folder when it starts."""

import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--add-dir", type=Path)
parser.add_argument("query")
arguments = parser.parse_args()
files = [arguments.add_dir / "CLAUDE.md", *sorted(arguments.add_dir.glob(".claude/skills/*/SKILL.md"))]
prompt = "".join(file.read_text() for file in files)
fields = arguments.query.partition("(")[2].rstrip(")").split("; ")  # in place of a model
print(
    "\x1b[1mYour parcel is on its way.\x1b[0m", ", ".join(each for each in fields if each.partition(":")[0] in prompt)
)
