"""`promptiter compare`: run several searches on the same task, and say which differences they show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from promptiter.cli.options import AsJson
from promptiter.cli.output import SteadyConsole, console, divert_prints, echo, json_text, write_text
from promptiter.errors import RequestError, SetupError
from traces.model import Json


def compare(
    configs: Annotated[
        list[Path],
        typer.Argument(metavar="CONFIG...", help="Configurations that differ in their search, at least two."),
    ],
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Runs of each search. Seeds are 0, 1000, 2000 and so on.")
    ] = 10,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A cap of each run, such as max_usd=2 or max_calls=500. Repeat it for several."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder of the comparison; by default in comparisons/.")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, metavar="N", help="Number of runs at the same time.")] = 1,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the forecast, and run nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare searches on one task with the same seeds and budget.

    The configurations must have the same agent, cases and metrics. Every search is run with every seed, and the
    differences in score, calls and dollars are tested together. Below 6 seeds nothing can be shown.

    The same command continues a comparison that was stopped: runs that ended are not run again.
    """
    from promptiter.cli.exit_codes import CANCELLED, FAILED
    from promptiter.cli.views import search_comparison as view
    from promptiter.config.comparison_plan import plan_comparison
    from promptiter.config.comparison_runs import count_runs_left, find_search_problems, run_comparison
    from promptiter.runs.report.comparison_files import comparison_as_json

    screen = SteadyConsole()
    with divert_prints():
        plan = plan_comparison(configs, seeds=seeds, budget=_read_budget(budget or ()), folder=folder)
        left = count_runs_left(plan)
        problems = find_search_problems(plan)
        if problems and not dry_run:
            raise RequestError(problems)
        if any(left.values()) or dry_run:
            view.print_plan(screen, plan, left, parallel=parallel, problems=problems)
        if dry_run:
            return
        if any(left.values()):
            _confirm(sum(left.values()), is_certain=yes)
        found = run_comparison(
            plan,
            parallel=parallel,
            on_run=lambda planned, run: echo(view.describe_run(planned, run, plan), err=True),
            notify=lambda text: echo(text, err=True),
        )
    if as_json:
        write_text(json_text(comparison_as_json(found)), None)
    else:
        view.print_result(console(), found, plan)
    outcomes = {run.outcome for each in found.searches for run in each.runs}
    if len(found.searches) * len(found.seeds) > sum(len(each.complete) for each in found.searches):
        is_failed = not outcomes.isdisjoint(("failed", "invalid_eval"))
        raise typer.Exit(FAILED if is_failed else CANCELLED)


def _confirm(runs: int, *, is_certain: bool) -> None:
    if is_certain:
        return
    if not sys.stdin.isatty():
        raise SetupError(f"{runs} runs would start; add --yes to start them, or --dry-run for the forecast alone")
    typer.confirm(f"Start {runs} runs?", abort=True, err=True)


def _read_budget(given: list[str] | tuple[str, ...]) -> dict[str, Json]:
    """The caps of `--budget max_usd=2`."""
    caps: dict[str, Json] = {}
    for each in given:
        key, sign, value = each.partition("=")
        try:
            amount = float(value)
        except ValueError:
            sign = ""
        if not sign or not key:
            raise SetupError(f"--budget {each!r} must be KEY=VALUE with a number, such as max_usd=2")
        caps[key.removeprefix("budget.")] = int(amount) if amount.is_integer() else amount
    return caps
