"""`promptiter show`: a run at any time, finished or not, from what is stored of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.options import App, AsJson, Run, RunsPlace, Server, TokenFile
from promptiter.cli.output import console, echo, json_text, write_text
from promptiter.cli.places import PlaceOptions, find_listed, has_begun, open_place, open_run
from promptiter.errors import SetupError

if TYPE_CHECKING:
    from promptiter.runs.next_commands import RunAddress
    from promptiter.runs.run_list import ListedRun


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
    runs: RunsPlace = None,
    server: Server = None,
    app: App = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a finished or running run, or compare two.

    Without options: outcome, scores, changes, blame, rejections and cost. Reads only what is stored of the run, so it
    works after the configuration or the agent has changed.
    """
    options = PlaceOptions(runs=runs, server=server, app=app, token_file=token_file).with_default_server(run)
    if blame and other is None and "#" in run:  # `promptiter show --blame SURFACE`
        run, other = "latest", run
    is_whole = not (diff or rounds or costs or case is not None)
    with open_run(run, options) as (folder, address):
        if address.place != "folder" and not has_begun(folder):
            _show_waiting(find_listed(open_place(options), address.run_id), address, as_json=as_json)
        elif blame and other is not None:
            if not is_whole:
                raise SetupError("--blame SURFACE cannot be combined with --diff, --rounds, --costs or --case")
            _show_surface(folder, address, other, as_json=as_json)
        elif other is not None:
            if not is_whole:
                raise SetupError("two runs are compared as a whole; leave out --diff, --rounds, --costs and --case")
            with open_run(other, options) as (other_folder, _):
                _show_comparison(folder, other_folder, as_json=as_json)
        elif case is not None:
            if diff or rounds or blame or costs:
                raise SetupError("--case cannot be combined with --diff, --rounds, --blame or --costs")
            _show_case(folder, address, case, as_json=as_json)
        else:
            _show_run(folder, address, diff=diff, rounds=rounds, blame=blame, costs=costs, as_json=as_json)


def _show_waiting(run: ListedRun, address: RunAddress, *, as_json: bool) -> None:
    """Show a run that has recorded nothing yet, as a list shows it."""
    from promptiter.runlog.codec import to_plain

    if as_json:
        write_text(json_text(to_plain(run._asdict())), None)
        return
    state = "is queued: it has not begun" if run.status == "queued" else f"is {run.status}; it had not begun"
    echo(f"{run.run_id} {state}" if run.error is None else f"{run.run_id} {state}: {run.error}")
    if run.can_resume and address.place == "server":
        echo(f"continue it with: promptiter resume {address.arguments}")


def _show_surface(folder: Path, address: RunAddress, surface_id: str, *, as_json: bool) -> None:
    from promptiter.cli.views.surface_evidence import print_surface
    from promptiter.runlog.codec import to_plain
    from promptiter.runs.surface_evidence import read_surface

    surface = read_surface(folder, surface_id)
    if as_json:
        write_text(json_text(to_plain(surface)), None)
    else:
        print_surface(console(), surface, address)


def _show_comparison(first: Path, second: Path, *, as_json: bool) -> None:
    from promptiter.cli.views.run_comparison import print_comparison
    from promptiter.runlog.codec import to_plain
    from promptiter.runs.run_comparison import compare_runs

    comparison = compare_runs(first, second)
    if as_json:
        write_text(json_text(to_plain(comparison)), None)
    else:
        print_comparison(console(), comparison)


def _show_case(folder: Path, address: RunAddress, case_id: str, *, as_json: bool) -> None:
    from promptiter.cli.views.case import print_case
    from promptiter.runlog.codec import to_plain
    from promptiter.runs.case_history import read_case

    history = read_case(folder, case_id)
    if as_json:
        write_text(json_text(to_plain(history)), None)
    else:
        print_case(console(), history, address)


def _show_run(
    folder: Path, address: RunAddress, *, diff: bool, rounds: bool, blame: bool, costs: bool, as_json: bool
) -> None:
    from promptiter.cli.views import show as show_view
    from promptiter.cli.views.costs import print_costs
    from promptiter.cli.views.rounds import print_rounds
    from promptiter.runlog.codec import to_plain
    from promptiter.runs.summary import read_summary

    summary = read_summary(folder, address=address)
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
