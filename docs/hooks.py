"""What mkdocs makes while it builds, so that it cannot drift: the command line's help and the pictures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from traces import read
from traces.draw.svg import to_svg
from traces.draw.trace_diagram import draw_trace

EXAMPLE = Path(__file__).parent.parent / "examples" / "traces" / "research_desk.jsonl"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "reference/cli.md", content=command_line_help()))
    picture = to_svg(draw_trace(next(iter(read(EXAMPLE)))))
    files.append(File.generated(config, "pictures/research_desk.svg", content=picture))
    return files


def command_line_help() -> str:
    command = [sys.executable, "-m", "typer", "promptiter.cli", "utils", "docs", "--name", "promptiter"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
