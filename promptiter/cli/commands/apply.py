"""`promptiter apply`: write the result of a run to where its texts are stored, or revert that."""

from __future__ import annotations

from typing import Annotated

import typer

from promptiter.cli.options import AsJson, Require, Run, Runs, find_run_folder
from promptiter.cli.output import divert_prints, print_error, write_text
from promptiter.errors import SetupError


def apply(
    run: Run = "latest",
    revert: Annotated[bool, typer.Option("--revert", help="Restore what was there before, byte for byte.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the diff, and change nothing.")] = False,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit the changed files to git, with the evidence in the message.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Apply the best profile of the search even without an improvement.")
    ] = False,
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="SURFACE=PLACE", help="Where a surface is stored; repeat the option for more."),
    ] = None,
    require: Require = None,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Write the result of a run to where its texts are stored.

    A text that is in one place of the project is found by itself. Name the other places under `sources` in
    promptiter.yaml: a file, prompts.md#Heading, config.yaml:field, agent.py:NAME, or a source of your own as
    module:attr.

    All files are changed or none; `promptiter restore` repairs what a kill interrupted. A place that was edited since
    the run began is not overwritten. Only an improvement is applied, unless forced.
    """
    from promptiter.api import apply_run, revert_run
    from promptiter.cli.exit_codes import FAILED, choose_exit_code
    from promptiter.cli.views.apply import print_report, report_as_json
    from promptiter.runs.apply import IMPROVED, NotAdoptedError

    folder, sources = find_run_folder(run, runs), _parse_sources(source or [])
    if revert and (force or require):
        raise SetupError("--revert takes neither --force nor --require; it restores what was there before")
    try:
        with divert_prints():
            if revert:
                report = revert_run(folder, sources=sources, dry_run=dry_run, commit=commit)
            else:
                report = apply_run(
                    folder, sources=sources, force=force, require=require, dry_run=dry_run, commit=commit
                )
    except NotAdoptedError as error:
        print_error(str(error))
        if error.outcome in IMPROVED:  # not for new cases, and the configuration may be what requires it
            require = "unseen"
        raise typer.Exit(choose_exit_code(error.outcome, require=require) or FAILED) from error
    if as_json:
        write_text(report_as_json(report), None)
    else:
        print_report(report, is_revert=revert)


def _parse_sources(given: list[str]) -> dict[str, str]:
    """The places by surface."""
    sources = {}
    for each in given:
        surface_id, equals, place = each.partition("=")
        if not equals or not surface_id or not place:
            raise SetupError(f"--source {each!r} must have the form SURFACE=PLACE, such as bot#instruction=bot.md")
        sources[surface_id.strip()] = place.strip()
    return sources
