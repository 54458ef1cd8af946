"""`promptiter gate`: whether the result of a run may go to production."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptiter.cli.exit_codes import FAILED
from promptiter.cli.options import AsJson, Run, Runs, find_run_folder
from promptiter.cli.output import console, divert_prints, json_text, write_text


def gate(
    run: Run = "latest",
    rules: Annotated[
        Path | None,
        typer.Argument(
            metavar="RULES", help="The rules, such as gate.yaml; without any, the verdict must be an improvement."
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write a JUnit report.")] = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Also write Markdown, for the comment of a pull request."),
    ] = None,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Decide whether the result of a run may be released.

    Every rule of RULES must hold. What the run has no evidence for is refused. Exit code 1 means that the gate is
    closed.
    """
    from promptiter.cli.views import gate as view
    from promptiter.runlog.codec import to_plain
    from promptiter.runs.gate import GateRules, check_gate
    from promptiter.runs.gate_file import load_rules
    from promptiter.runs.header import read_header
    from promptiter.runs.summary import read_result

    folder = find_run_folder(run, runs)
    wanted = GateRules() if rules is None else load_rules(rules)
    with divert_prints():
        changed = _find_changed_inputs(folder) if wanted.unchanged_inputs else None
    found = check_gate(wanted, read_result(folder), read_header(folder), changed_inputs=changed)
    if junit is not None:
        write_text(view.gate_as_junit(found), junit)
    if markdown is not None:
        write_text(view.gate_as_markdown(found), markdown)
    if as_json:
        write_text(json_text({"is_open": found.is_open, **to_plain(found)}), None)
    else:
        view.print_gate(console(), found)
    if not found.is_open:
        raise typer.Exit(FAILED)


def _find_changed_inputs(folder: Path) -> list[str] | None:
    """How the current agent, cases and configuration differ from those of the run; None if they cannot be read."""
    from promptiter.api import load_resume
    from promptiter.errors import ChangedInputsError, PromptiterError
    from promptiter.runs.header import read_header
    from promptiter.runs.stored_run import check_inputs

    try:
        current = load_resume(folder)
        notes = check_inputs(
            read_header(folder), current.engine, current.checked, configuration=current.configuration, where=str(folder)
        )
    except ChangedInputsError as error:
        return list(error.changes)
    except PromptiterError:
        return None
    return notes
