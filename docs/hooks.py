"""Pages and pictures that mkdocs generates while it builds, so that they cannot drift from the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from traces import read
from traces.draw.diagram import Arrow, Box, Diagram
from traces.draw.svg import to_svg
from traces.draw.trace_diagram import draw_trace

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "record_a_run" / "research_desk.jsonl"
PACKAGES = (
    *("agents", "evaluation", "policies", "stages", "backprop", "search", "runs", "observers", "endpoint", "llm"),
    "offline",
)
FIRST = ("Engine", "RunRequest", "RunResult", "Profile")

LOOP = Diagram(
    "One run of promptiter",
    (
        Box("baseline", "baseline", "score the validation cases", "agent"),
        Box("train", "train", "run the train cases", "agent"),
        Box("losses", "losses", "failed scores, placed on steps", "function"),
        Box("blame", "blame", "walk back along the trace", "llm"),
        Box("merge", "merge", "one signal per surface", "llm"),
        Box("patch", "patch", "rewrite the blamed surfaces", "llm"),
        Box("rerun", "rerun", "failed train cases, patched", "agent"),
        Box("validation", "validation", "accept or reject", "agent"),
        Box("ablation", "ablation", "drop patches that do not help", "agent"),
        Box("final_test", "final test", "baseline and best again", "agent"),
        Box("verdict", "verdict", "adopt, or keep the baseline", "function"),
    ),
    (
        Arrow("baseline", "train"),
        Arrow("train", "losses"),
        Arrow("losses", "blame"),
        Arrow("blame", "merge"),
        Arrow("merge", "patch"),
        Arrow("patch", "rerun"),
        Arrow("rerun", "blame", label="still failing"),
        Arrow("rerun", "validation"),
        Arrow("validation", "train", label="next round"),
        Arrow("validation", "ablation", label="stop"),
        Arrow("ablation", "final_test"),
        Arrow("final_test", "verdict"),
    ),
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {
        "reference/cli.md": command_line_help(),
        "reference/python/promptiter.md": promptiter_page(),
        "reference/python/traces.md": package_page("traces"),
        "pictures/loop.svg": to_svg(LOOP),
        "pictures/research_desk.svg": to_svg(draw_trace(next(iter(read(EXAMPLE))))),
    }
    pages |= {f"reference/python/{name}.md": package_page(f"promptiter.{name}") for name in PACKAGES}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def command_line_help() -> str:
    """The help of all commands, with whole summaries and without the names of Python types."""
    command = [sys.executable, "-m", "typer", "promptiter.cli", "utils", "docs", "--name", "promptiter"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    summaries = dict(re.findall(r"^#+ `promptiter (.+)`\n\n(.+)", text, re.MULTILINE))
    lines, section = [], ""
    for line in re.sub(r" <[\w|[\]]+>`", "`", text).splitlines():
        if heading := re.fullmatch(r"#+ `promptiter ?(.*)`", line):
            section = heading[1]
        if (listed := re.match(r"\* `(\w+)`: ", line)) and (full := f"{section} {listed[1]}".strip()) in summaries:
            line = f"{listed[0]}{summaries[full]}"
        lines.append(line)
    return "\n".join(["# Command line", *lines[1:], ""])


def promptiter_page() -> str:
    """The names of `promptiter`: those that are only here in full, the others as links to their package."""
    homes = {name: package for package in PACKAGES for name in public_names(f"promptiter.{package}")}
    names = public_names("promptiter")
    own = [*FIRST, *sorted(set(names) - set(homes) - set(FIRST))]
    links = [f"[`{name}`]({homes[name]}.md)" for name in sorted(names) if name in homes]
    return "\n".join(
        [*page("promptiter", {name: names[name] for name in own}), "## Also here", "", ", ".join(links), ""]
    )


def package_page(package: str) -> str:
    return "\n".join(page(package, public_names(package)))


def page(package: str, names: dict[str, str]) -> Iterator[str]:
    yield f"# {package}\n"
    yield f"{module_docstring(package)}\n"
    for name in names:
        yield f"::: {names[name]}.{name}\n    options:\n      heading_level: 2\n"


def public_names(package: str) -> dict[str, str]:
    """Each public name of a package, with the module that defines it, as `__init__.pyi` lists them."""
    stub = ROOT.joinpath(*package.split("."), "__init__.pyi")
    imports = [node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def module_docstring(package: str) -> str:
    source = ROOT.joinpath(*package.split("."), "__init__.py").read_text("utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0]
