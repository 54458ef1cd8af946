"""`promptiter gate`: the rules one by one, as text, Markdown and JUnit XML."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from promptiter.cli.junit import JUnitTest, suite_as_junit
from promptiter.cli.output import new_table
from promptiter.runs.gate import GateCheck, GateResult
from promptiter.wording import escape_markdown, plural
from traces.text import one_line


def print_gate(screen: Console, found: GateResult) -> None:
    """Print whether the gate is open, and each rule with its reason."""
    screen.print(Text(_headline(found), "bold green" if found.is_open else "bold red"))
    table = new_table("", "rule", gap=2)
    table.show_header = False
    table.add_column("", overflow="fold")
    for check in found.checks:
        mark, style = ("✓", "green") if check.passed else ("✗", "red") if check.is_known else ("?", "yellow")
        table.add_row(Text(mark, style), check.rule, Text(one_line(check.reason), "" if check.passed else style))
    screen.print(table)


def gate_as_markdown(found: GateResult) -> str:
    """A table for the comment of a pull request."""
    rows = [f"| {_mark(check)} | `{check.rule}` | {escape_markdown(check.reason)} |" for check in found.checks]
    return "\n".join([f"### {_headline(found)}", "", "| | rule | |", "|---|---|---|", *rows, ""])


def gate_as_junit(found: GateResult) -> str:
    """A test for each rule; missing evidence is an error."""
    tests = [
        JUnitTest(
            name=check.rule,
            message=None if check.passed else check.reason,
            kind="failure" if check.is_known else "error",
        )
        for check in found.checks
    ]
    return suite_as_junit(f"promptiter gate {found.run_id}", tests)


def _headline(found: GateResult) -> str:
    closed = [check for check in found.checks if not check.passed]
    state = "open" if not closed else f"closed by {plural(len(closed), 'rule')}"
    return f"Gate {state}: {found.run_id}"


def _mark(check: GateCheck) -> str:
    return "✅" if check.passed else "❌" if check.is_known else "❔"
