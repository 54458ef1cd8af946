"""`promptiter runs`: list runs, how they ended, and what they cost. `stop` ends one, `export` copies one here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar, get_args

import typer

from promptiter.cli.options import App, AsJson, Run, RunsPlace, Server, TokenFile
from promptiter.cli.output import console, echo, json_text, write_text
from promptiter.cli.places import PlaceOptions, describe_none, find_run_id, is_elsewhere, list_all, open_place
from promptiter.errors import SetupError, nearest
from promptiter.policies.verdict import Verdict
from promptiter.runs.listing import MAX_NAMED
from promptiter.runs.run_list import LISTED_STATUSES, RunQuery
from promptiter.wording import join_names

T = TypeVar("T")

MOST = 500
"""The most runs of a database or a server that are listed, unless more are asked for."""


def runs(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="PLACE",
            help="A folder with runs, a project, or the URL of a database; by default the promptiter.yaml of this "
            "folder.",
        ),
    ] = None,
    runs: RunsPlace = None,
    server: Server = None,
    app: App = None,
    token_file: TokenFile = None,
    status: Annotated[
        list[str] | None, typer.Option(metavar="STATUS", help="Only runs of this status. Repeatable.")
    ] = None,
    verdict: Annotated[
        list[str] | None, typer.Option(metavar="VERDICT", help="Only runs with this verdict. Repeatable.")
    ] = None,
    text: Annotated[str, typer.Option(metavar="ID", help="Only runs whose id contains this.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest ones.")] = None,
    before: Annotated[
        str | None, typer.Option(metavar="RUN", help="Only runs before this one: the next page of a list.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List runs: outcome, rounds, score, cost and time.

    `promptiter show RUN` shows one of them; `promptiter resume RUN` resumes one that did not finish. Of a database or
    a server, the newest 500 runs are listed.
    """
    from promptiter.cli.views.runs import print_runs
    from promptiter.runlog.codec import to_plain

    if place is not None and runs is not None:
        raise SetupError(f"{place!r} and --runs {runs!r} both name a place; give one of them")
    options = PlaceOptions(runs=place or runs, server=server, app=app, token_file=token_file).with_default_server()
    opened = open_place(options)
    statuses = tuple(_choose("--status", each, LISTED_STATUSES) for each in status or ())
    verdicts = tuple(_choose("--verdict", each, get_args(Verdict)) for each in verdict or ())
    query = RunQuery(statuses=statuses, verdicts=verdicts, text=text, cursor=before)
    listed, more = list_all(opened, query, limit=limit or (MOST if is_elsewhere(options) else None))
    if as_json:
        write_text(json_text([to_plain(each._asdict()) for each in listed]), None)
    elif not listed:
        echo(f"no {'such ' if status or verdict or text or before else ''}{describe_none(opened)}")
    else:
        print_runs(console(), listed, opened.locate)
        if more is not None:
            echo(f"older runs: --before {more}", err=True)
        if opened.app is None and (apps := opened.list_apps()):
            echo(f"runs of the apps {join_names(apps, limit=MAX_NAMED)}: --app NAME", err=True)


def stop(
    run: Run = "latest",
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stop at once, and mark the run as cancelled; finished rounds stay.")
    ] = False,
    runs: RunsPlace = None,
    server: Server = None,
    app: App = None,
    token_file: TokenFile = None,
) -> None:
    """Stop a run in progress, in whatever process it is.

    It finishes the work in progress, and can be resumed, also if it was cancelled.
    """
    options = PlaceOptions(runs=runs, server=server, app=app, token_file=token_file).with_default_server(run)
    if not is_elsewhere(options) and (Path(run) / "run.json").is_file():
        path = Path(run).resolve()
        options, run = PlaceOptions(runs=str(path.parent)), path.name
    place = open_place(options)
    run_id = find_run_id(place, run)
    is_cancelled = place.stop_run(run_id, cancel=cancel)
    echo(f"cancelled {run_id}" if is_cancelled else f"{run_id} stops after the work in progress")
    if (address := place.locate(run_id)).place != "database":
        echo(f"continue it with: promptiter resume {address.arguments}", err=True)


def export(
    run: Run = "latest",
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to create its folder; by default `runs` of promptiter.yaml."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG", help="The project that the run belongs to here; by default promptiter.yaml, if it exists."
        ),
    ] = None,
    runs: RunsPlace = None,
    server: Server = None,
    app: App = None,
    token_file: TokenFile = None,
) -> None:
    """Copy a run from a server or a database to a folder.

    `promptiter show`, `report`, `apply`, `gate`, `trace show` and others then work as with any run. Answers of models
    are not copied, so resume a run where it is.
    """
    from promptiter.cli.exports import export_run

    options = PlaceOptions(runs=runs, server=server, app=app, token_file=token_file).with_default_server()
    if not is_elsewhere(options):
        raise SetupError("name where the run is: --server URL, or --runs with the URL of a database")
    place = open_place(options)
    echo(str(export_run(place, find_run_id(place, run), to=to, config=config)))


def _choose(option: str, given: str, known: Sequence[T]) -> T:
    """The known value of an option. SetupError if there is none."""
    for each in known:
        if each == given:
            return each
    names = [str(each) for each in known]
    raise SetupError(f"{option} {given!r} is unknown{nearest(given, names)}; give one of {', '.join(names)}")
