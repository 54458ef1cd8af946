"""`promptiter show`: a run at any time, finished or not, from its folder alone."""

from __future__ import annotations

from typing import Annotated

import typer

from promptiter.cli.options import AsJson, Run, Runs, find_run_folder
from promptiter.cli.output import console, json_text, write_text
from promptiter.errors import SetupError


def show(
    run: Run = "latest",
    other: Annotated[
        str | None,
        typer.Argument(metavar="OTHER", help="A second run, to compare with the first; after --blame, a surface."),
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="What changed in each surface, and why.")] = False,
    rounds: Annotated[bool, typer.Option("--rounds", help="Each round: scores, patches, decision.")] = False,
    blame: Annotated[
        bool,
        typer.Option(
            "--blame", help="Each blamed surface, with its cases; --blame SURFACE: the evidence for each change."
        ),
    ] = False,
    costs: Annotated[bool, typer.Option("--costs", help="Calls and cost by role and stage, and the forecast.")] = False,
    case: Annotated[
        str | None, typer.Option("--case", metavar="ID", help="Each run of one case, with its scores.")
    ] = None,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Show a finished or running run, or compare two.

    Without options: outcome, scores, changes, blame, rejections and cost. Reads only the folder of the run, so it
    works after the configuration or the agent has changed.
    """
    from promptiter.cli.views import show as show_view
    from promptiter.cli.views.case import print_case
    from promptiter.cli.views.costs import print_costs
    from promptiter.cli.views.rounds import print_rounds
    from promptiter.cli.views.run_comparison import print_comparison
    from promptiter.cli.views.surface_evidence import print_surface
    from promptiter.runlog.codec import to_plain
    from promptiter.runs.case_history import read_case
    from promptiter.runs.run_comparison import compare_runs
    from promptiter.runs.summary import read_summary
    from promptiter.runs.surface_evidence import read_surface

    if blame and other is None and "#" in run:  # `promptiter show --blame SURFACE`
        run, other = "latest", run
    folder = find_run_folder(run, runs)
    if blame and other is not None:
        if diff or rounds or costs or case is not None:
            raise SetupError("--blame SURFACE cannot be combined with --diff, --rounds, --costs or --case")
        surface = read_surface(folder, other)
        if as_json:
            write_text(json_text(to_plain(surface)), None)
        else:
            print_surface(console(), surface, folder)
        return
    if other is not None:
        if diff or rounds or costs or case is not None:
            raise SetupError("two runs are compared as a whole; leave out --diff, --rounds, --costs and --case")
        comparison = compare_runs(folder, find_run_folder(other, runs))
        if as_json:
            write_text(json_text(to_plain(comparison)), None)
        else:
            print_comparison(console(), comparison)
        return
    if case is not None:
        if diff or rounds or blame or costs:
            raise SetupError("--case cannot be combined with --diff, --rounds, --blame or --costs")
        history = read_case(folder, case)
        if as_json:
            write_text(json_text(to_plain(history)), None)
        else:
            print_case(console(), history, folder)
        return
    summary = read_summary(folder)
    if as_json:
        write_text(json_text(to_plain(summary)), None)
        return
    screen = console()
    if not (diff or rounds or blame or costs):
        show_view.print_summary(screen, summary)
        return
    show_view.print_title(screen, summary)
    for is_wanted, print_section in (
        (diff, show_view.print_changes),
        (rounds, print_rounds),
        (blame, show_view.print_blame),
        (costs, print_costs),
    ):
        if is_wanted:
            print_section(screen, summary)
