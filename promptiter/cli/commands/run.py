"""`promptiter run`, `resume` and `rerun`: optimize the agent of a promptiter.yaml, and show the outcome."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.load import collect_settings, read_agent
from promptiter.cli.options import (
    App,
    Apply,
    Concurrency,
    Config,
    ConfiguredJson,
    Costs,
    Detach,
    InitialProfile,
    Layout,
    MaxUsd,
    Quiet,
    Require,
    Review,
    ReviewWay,
    Run,
    Runs,
    RunsPlace,
    Seed,
    Server,
    TokenFile,
    find_run_folder,
)
from promptiter.cli.output import SteadyConsole, console, divert_prints, echo, write_text
from promptiter.cli.places import SERVER, PlaceOptions, find_app_folder, is_elsewhere
from promptiter.cli.run_execution import apply_at_end, check_requirement, end, execute, prepare_run
from promptiter.errors import SetupError
from traces.model import Json

if TYPE_CHECKING:
    from promptiter.config.file import ParsedConfig

DEFAULT_CONFIG = Path("promptiter.yaml")


def run(
    config: Config = DEFAULT_CONFIG,
    max_rounds: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Maximum number of rounds; 0 only evaluates the baseline.")
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="The agent as module:attr.")] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PLACE",
            help="Where a surface, or a prompt that a function reads, is stored. Repeat the option for several.",
        ),
    ] = None,
    train: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Eval set whose failures are traced to their causes.")
    ] = None,
    validation: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Eval set on which candidates are compared.")
    ] = None,
    layout: Annotated[
        Layout | None,
        typer.Option(
            metavar="LAYOUT",
            help="Also write the artifacts of AgentOptimizer (001) or HoloDeck (000).",
        ),
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write these artifacts; by default into the run.")
    ] = None,
    max_usd: MaxUsd = None,
    concurrency: Concurrency = None,
    seed: Seed = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(metavar="SURFACE", help="Surfaces that may change: separated by commas, or repeat the option."),
    ] = None,
    initial_profile: InitialProfile = None,
    review: Review = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FOLDER", help="Create the folder of the run in this folder.")
    ] = None,
    keep_best_only: Annotated[
        bool | None,
        typer.Option("--keep-best-only/--keep-all", help="At the end, remove answers, traces and other candidates."),
    ] = None,
    as_json: ConfiguredJson = None,
    quiet: Quiet = None,
    require: Require = None,
    apply: Apply = None,
    costs: Costs = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the configuration and a forecast, and run nothing.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="Run an app of this server. CONFIG is not read; sets are ids."),
    ] = None,
    app: App = None,
    token_file: TokenFile = None,
    detach: Detach = False,
) -> None:
    """Optimize an agent, and test the result.

    Finds the step that failed, patches the text behind it, and adopts only what one test shows to be better.

    During the search any gain is accepted. At the end baseline and best are run again, and one significance test
    decides what is adopted (`final_test` in CONFIG).

    Options override the keys of the same name in CONFIG, which may also be an optimizer.json of AgentOptimizer or an
    agent.yaml of HoloDeck.

    The first Ctrl-C finishes the work in progress, the second stops at once; `promptiter resume` continues either.

    `promptiter --help` explains the exit codes.
    """
    from promptiter.config.agent_yaml.document import is_agent_file
    from promptiter.config.file import read_config

    names = [name.strip() for each in targets or () for name in each.split(",") if name.strip()]
    if server is not None:
        from promptiter.cli.served_execution import Shown, refuse_options, start_served

        refuse_options(
            agent=agent,
            source=source,
            layout=layout,
            output_dir=output_dir,
            review=review,
            keep_best_only=keep_best_only,
            apply=apply,
            dry_run=dry_run,
        )
        if config != DEFAULT_CONFIG:
            raise SetupError(f"{str(config)!r} cannot be run at a server; choose an app of the server with --app")
        changes = collect_settings(
            train=[str(each) for each in train or ()] or None,
            validation=[str(each) for each in validation or ()] or None,
            max_rounds=max_rounds,
            budget={"max_usd": max_usd},
            evaluation={"concurrency": concurrency},
            seed=seed,
            targets=names or None,
            initial_profile=None if initial_profile is None else {"values": _read_values(initial_profile)},
        )
        place = PlaceOptions(runs=None if runs is None else str(runs), server=server, app=app, token_file=token_file)
        shown = Shown(detach=detach, as_json=bool(as_json), quiet=bool(quiet), require=require, costs=costs)
        start_served(place, changes, shown)
    if app is not None or token_file is not None or detach:
        hint = f"; `run` does not read {SERVER}" if os.environ.get(SERVER) else ""
        raise SetupError(f"--app, --token-file and --detach are for --server URL{hint}")
    settings = collect_settings(
        **read_agent(agent, source or (), is_agent_yaml=is_agent_file(config)),
        train=[str(each.absolute()) for each in train or ()] or None,
        validation=[str(each.absolute()) for each in validation or ()] or None,
        layout=layout,
        output_dir=output_dir,
        max_rounds=max_rounds,
        budget={"max_usd": max_usd},
        evaluation={"concurrency": concurrency},
        seed=seed,
        targets=names or None,
        initial_profile=initial_profile,
        review=_parse_review(review),
        runs=runs,
        keep_best_only=keep_best_only,
        json=as_json,
        quiet=quiet,
        require=require,
        apply=apply,
    )
    if dry_run:
        _print_forecast(read_config(config, settings=settings))
        return
    execute(partial(prepare_run, read_config(config, settings=settings)), costs=costs)


def resume(
    run: Run = "latest",
    concurrency: Concurrency = None,
    review: Review = None,
    runs: RunsPlace = None,
    server: Server = None,
    app: App = None,
    token_file: TokenFile = None,
    detach: Detach = False,
    final_test: Annotated[
        bool, typer.Option("--final-test", help="End the search after the current round, and test what was accepted.")
    ] = False,
    as_json: ConfiguredJson = None,
    quiet: Quiet = None,
    require: Require = None,
    apply: Apply = None,
    costs: Costs = False,
) -> None:
    """Resume an interrupted, failed or stopped run.

    Recorded model answers are reused at no cost.

    The configuration, the eval sets and the agent must not have changed since the run began; if they have, the error
    names the changes. Options may differ. A run that Python began is resumed, too, if its parts have names.
    To look at a run, use `promptiter show`. With --server, a run of a server is continued there, and its progress shown
    here; Ctrl-C only ends that.
    """
    from promptiter.api import load_resume
    from promptiter.runs.directory import read_finished_run
    from promptiter.runs.header import read_header

    options = PlaceOptions(runs=runs, server=server, app=app, token_file=token_file).with_default_server(run)
    if options.server is not None:
        from promptiter.cli.served_execution import Shown, refuse_options, resume_served

        refuse_options(concurrency=concurrency, review=review, final_test=final_test, apply=apply)
        shown = Shown(detach=detach, as_json=bool(as_json), quiet=bool(quiet), require=require, costs=costs)
        resume_served(options, run, shown)
    if is_elsewhere(options) or detach:
        raise SetupError("a run in a database is continued by `promptiter serve`; name that server with --server URL")
    folder = find_run_folder(run, find_app_folder(options))
    settings = collect_settings(
        evaluation={"concurrency": concurrency},
        review=_parse_review(review),
        json=as_json,
        quiet=quiet,
        require=require,
        apply=apply,
    )
    prepare = partial(load_resume, folder, settings=settings)
    try:
        execute(prepare, folder=folder, test_now=final_test, costs=costs)
    except SetupError:
        if (finished := read_finished_run(folder)) is None:
            raise
        configuration = read_header(folder).configuration
        document = {} if configuration is None else configuration.document
        applied = apply_at_end(folder, require) if (document.get("apply") if apply is None else apply) else None
        end(
            finished,
            folder,
            as_json=bool(as_json),
            quiet=bool(quiet),
            require=require,
            costs=costs,
            applied=applied,
            layout=document.get("layout"),
        )


def rerun(
    run: Run = "latest",
    concurrency: Concurrency = None,
    review: Review = None,
    runs: Runs = None,
    as_json: ConfiguredJson = None,
    quiet: Quiet = None,
    require: Require = None,
    apply: Apply = None,
    costs: Costs = False,
) -> None:
    """Start a new run with the settings of an earlier one.

    The settings come from its run.json, the agent and the eval sets are the current ones.
    """
    from promptiter.api import load_rerun

    folder = find_run_folder(run, runs)
    settings = collect_settings(
        evaluation={"concurrency": concurrency},
        review=_parse_review(review),
        runs=runs,
        json=as_json,
        quiet=quiet,
        require=require,
        apply=apply,
    )
    execute(partial(load_rerun, folder, settings=settings), costs=costs)


def _print_forecast(parsed: ParsedConfig) -> None:
    """Print the effective configuration as YAML that can be run, and the forecast to standard error."""
    import yaml

    from promptiter.cli.views import forecast as forecast_view
    from promptiter.config.effective_config import build_effective_config

    with divert_prints():
        configured = prepare_run(parsed)
        try:
            check_requirement(configured)
            effective, forecast = build_effective_config(configured), configured.forecast()
        finally:
            configured.gateway.cache.close()
    if configured.config.as_json:
        write_text(forecast_view.forecast_as_json(forecast, effective.document), None)
        return
    if configured.config.quiet:
        forecast_view.print_forecast(console(), forecast)
        return
    if effective.left_out:
        echo(f"# Secrets are left out; write them as ${{VARIABLE}}: {', '.join(effective.left_out)}")
    echo(yaml.safe_dump(effective.document, sort_keys=False, allow_unicode=True, width=120), nl=False)
    echo(err=True)
    forecast_view.print_forecast(SteadyConsole(), forecast)


def _read_values(file: Path) -> dict[str, Json]:
    """The values of a profile in a file."""
    from promptiter.profile import Profile

    return dict(Profile.load(file).overrides)


def _parse_review(way: ReviewWay | None) -> ReviewWay | bool | None:
    return False if way == "no" else way
