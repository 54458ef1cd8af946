"""`--help` at 80 columns, for every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer

from promptiter.cli import app
from tests.cli.conftest import Run


def commands() -> Iterator[tuple[str, ...]]:
    yield ()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield (name,)
        yield from ((name, sub) for sub in getattr(command, "commands", {}))


@pytest.mark.parametrize("command", [*commands()], ids=lambda command: " ".join(command) or "promptiter")
def test_help_fits_80_columns_and_names_no_python_type(command: tuple[str, ...], run: Run) -> None:
    shown = run(*command, "--help", width=80)
    assert max(map(len, shown.splitlines())) <= 80
    assert re.findall(r"<[a-z\[\]]+>|INTEGER|TEXT|\{[A-Z]", shown) == []
    summaries = shown.partition("\nCommands:\n")[2]
    assert "..." not in summaries


@pytest.mark.slow
def test_options_of_one_name_mean_the_same_in_every_command(run: Run) -> None:
    found: dict[str, set[str]] = {"-o": set(), "--seed": set(), "--max-usd": set(), "--concurrency": set()}
    for command in commands():
        for line in run(*command, "--help", width=200).splitlines():
            option = next((name for name in found if line.startswith((f"  {name} ", f"  {name}, "))), None)
            if option is not None:
                found[option].add(re.sub(r"^ +\S.*?  +|  \[.*\]$", "", line))
    assert found == {
        "-o": {
            "Write to this file instead of printing.",
            "The file to write; .gz compresses.",
            "The file to write; .gz compresses. - prints.",
            "The file to write. - prints.",
            "Where to write; by default results/optimizer/RUN.",
        },
        "--seed": {"Random seed."},
        "--max-usd": {"Hard cap on spending."},
        "--concurrency": {"Number of cases to run in parallel."},
    }


@pytest.mark.slow
def test_a_shell_gets_a_completion_script() -> None:
    environ = {**os.environ, "_PROMPTITER_COMPLETE": "source_bash"}
    code = "from promptiter.cli import main; import sys; sys.argv = ['promptiter']; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert "complete -o default -F _promptiter_completion promptiter" in done.stdout
