"""`promptiter test`: run and optimize the agent of an agent.yaml, with the options and exit codes of HoloDeck."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from promptiter.cli.commands.evaluate import run_evaluation
from promptiter.cli.exit_codes import FAILED, LAYOUT_CODES
from promptiter.cli.help import FatalUsageCommand, PlainCommand
from promptiter.cli.load import collect_settings
from promptiter.cli.options import AsJson, MaxUsd, Output, Seed
from promptiter.cli.output import echo, print_error
from promptiter.errors import ChangedInputsError, PromptiterError, SetupError

if TYPE_CHECKING:
    from promptiter.config.agent_yaml.document import AgentDocument
    from promptiter.config.file import ParsedConfig
    from traces.model import Json

app = typer.Typer(help="Run and optimize the agent of an agent.yaml.", no_args_is_help=True)

AgentConfig = Annotated[Path, typer.Argument(metavar="AGENT", help="An agent.yaml, or a candidate of a run.")]
OwnAgent = Annotated[
    str | None,
    typer.Option("--agent", metavar="NAME", help="Your own agent as module:attr; the file has its axes."),
]


@app.command(cls=PlainCommand)
def run(
    agent_config: AgentConfig = Path("agent.yaml"),
    cases: Annotated[
        Path | None, typer.Option("--cases", metavar="FILE", help="The cases; by default those of the file.")
    ] = None,
    agent: OwnAgent = None,
    repeats: Annotated[int | None, typer.Option(min=1, metavar="N", help="Runs of each case.")] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Run the cases of an agent.yaml and score them.

    The cases are its test_cases or test_cases_file, otherwise the hold-out or the train cases. Exits 1 if a metric's
    mean is below its threshold.
    """
    from promptiter.config.agent_yaml.document import read_agent_file
    from promptiter.config.file import read_config

    found = read_agent_file(agent_config)
    with tempfile.TemporaryDirectory() as scratch:
        given = cases
        if given is None and found.given.test_cases:
            given = Path(scratch) / "test_cases.json"
            given.write_bytes(orjson.dumps(found.given.test_cases))
        elif given is None and (name := _find_cases(found)) is not None:
            given = found.folder / name
        settings = collect_settings(
            agent=None if agent is None else {"python": agent}, evaluation={"repeats": repeats or 1}
        )
        run_evaluation(
            read_config(agent_config, settings=settings),
            "validation" if given is None else str(given),
            as_json=as_json,
            output=output,
        )


def _find_cases(found: AgentDocument) -> str | None:
    """The file of the cases to run, as the agent.yaml names it."""
    block = found.optimizer
    names = () if block is None else (block.holdout_cases_file, block.train_cases_file)
    return next((name for name in (found.given.test_cases_file, *names) if name is not None), None)


@app.command(cls=FatalUsageCommand)
def optimize(
    agent_config: AgentConfig = Path("agent.yaml"),
    max_cycles: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cap on cycles of a numeric and a textual phase.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(min=0, metavar="MINUTES", help="Time limit of the whole run.")
    ] = None,
    max_usd: MaxUsd = None,
    numeric_max_trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cap on the trials of each numeric phase.")
    ] = None,
    numeric_patience: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End a numeric phase after N trials without an accept.")
    ] = None,
    textual_max_trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cap on the trials of each textual phase.")
    ] = None,
    textual_patience: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End a textual phase after N trials without an accept.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs of every case in each trial (default: 3).")
    ] = None,
    accept_sigma: Annotated[
        float | None, typer.Option(min=0, metavar="SIGMA", help="Accept bar in pooled deviations (default: 1.0).")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Numeric trials that run together (default: 1).")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Continue an earlier run, named by its id.")
    ] = None,
    seed: Seed = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write report.md of an earlier run again (--resume names it).")
    ] = False,
    keep_best_only: Annotated[
        bool | None, typer.Option("--keep-best-only", help="At the end, remove all candidates but the best.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file, print axes, budget and loss, and run nothing.")
    ] = False,
    print_baseline: Annotated[
        bool, typer.Option("--print-baseline", help="Only run the baseline, and print its loss and metrics.")
    ] = False,
    suggest_axes: Annotated[
        bool, typer.Option("--suggest-axes", help="Print a block of axes to start from, and run nothing.")
    ] = False,
    agent: OwnAgent = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", metavar="FOLDER", help="Where to write; by default results/optimizer/RUN."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no line per trial.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the diagnoses and edits of textual trials.")
    ] = False,
) -> None:
    """Optimize the numbers and texts of an agent.yaml.

    Searches its numeric axes and improves its texts by turns, as its block evaluations.optimizer says; options
    override it. The file itself is not changed: candidates and the report are in results/optimizer/RUN.

    Exit codes: 0 the run ended, with or without an improvement; 1 a fatal error; 2 interrupted, see --resume.
    """
    settings = collect_settings(
        search={
            "options": {
                "max_cycles": max_cycles,
                "numeric_max_trials": numeric_max_trials,
                "numeric_patience": numeric_patience,
                "textual_max_trials": textual_max_trials,
                "textual_patience": textual_patience,
                "batch_size": batch_size,
            }
        },
        stop={"minutes": max_minutes},
        budget={} if max_usd is None else {"max_usd": max_usd, "allow_unknown_price": True},
        acceptance={"sigma_gain": {"repeats": repeats, "accept_sigma": accept_sigma}},
        evaluation={"repeats": repeats},
        agent=None if agent is None else {"python": agent},
        seed=seed,
        keep_best_only=keep_best_only,
        output_dir=output_dir,
        layout="000",
    )
    with _exit_as_documented(resume):
        if report_only:
            _write_report(agent_config, resume, output_dir)
        elif suggest_axes:
            _suggest_axes(agent_config, agent)
        elif print_baseline:
            _print_baseline(_read(agent_config, settings))
        elif dry_run:
            _print_plan(_read(agent_config, settings))
        else:
            _optimize(agent_config, settings, resume=resume, quiet=quiet, verbose=verbose)


@contextmanager
def _exit_as_documented(resume: str | None) -> Iterator[None]:
    """Give errors the code 1. Ctrl-C and SIGTERM give the code 2, also while no run is in progress that could stop."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as interrupted:
        print_error("interrupted while no run was in progress")
        raise typer.Exit(LAYOUT_CODES["000"]["CANCELED"]) from interrupted
    except ChangedInputsError as error:
        print_error(f"baseline changed since run {resume}. Start a new run instead.\n{error}")
        raise typer.Exit(FAILED) from error
    except PromptiterError as error:
        print_error(str(error))
        raise typer.Exit(FAILED) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _read(file: Path, settings: dict[str, Json]) -> ParsedConfig:
    from promptiter.config.agent_yaml.document import read_agent_file
    from promptiter.config.file import read_config

    read_agent_file(file)  # says that another file is not an agent.yaml
    return read_config(file, settings=settings)


def _optimize(file: Path, settings: dict[str, Json], *, resume: str | None, quiet: bool, verbose: bool) -> None:
    from promptiter.cli.test_execution import execute_optimization

    folder = None if resume is None else _find_run(file, resume)
    code = execute_optimization(
        None if folder is not None else _read(file, settings),
        folder=folder,
        settings=settings,
        quiet=quiet,
        verbose=verbose,
    )
    raise typer.Exit(code)


def _find_run(file: Path, run_id: str) -> Path:
    from promptiter.config.agent_yaml.document import read_agent_file
    from promptiter.runs.listing import find_run

    return find_run(run_id, read_agent_file(file).folder / "runs")


def _write_report(file: Path, run_id: str | None, output_dir: Path | None) -> None:
    from promptiter.config.agent_yaml.document import read_agent_file
    from promptiter.config.layout import find_results, list_artifacts
    from promptiter.runs.layout_000.report import FILE_NAME, write_report
    from promptiter.wording import path_from_here
    from traces.files import write_file

    folder = output_dir
    if folder is None:
        found = read_agent_file(file)
        chosen = [each for name, each in list_artifacts(found).items() if run_id is None or run_id in name]
        if not chosen:
            what = "no run" if run_id is None else f"no run {run_id!r}"
            raise SetupError(f"{find_results(found)} has {what}; start one first, or name its folder with -o")
        folder = chosen[-1]
    text = write_report(folder)
    write_file(folder / FILE_NAME, text.encode("utf-8", "replace"))
    echo(str(path_from_here(folder / FILE_NAME)))


def _suggest_axes(file: Path, agent: str | None) -> None:
    import yaml

    from promptiter.config.agent_yaml.agent import build_yaml_agent
    from promptiter.config.agent_yaml.axes import suggest_axes
    from promptiter.config.agent_yaml.document import read_agent_file
    from promptiter.config.agent_yaml.sections import Axes
    from promptiter.config.loading import load_agent, make_importable

    found = read_agent_file(file)
    make_importable([found.folder])
    if agent is not None:
        structure = load_agent(agent, folders=[found.folder]).describe()
    else:
        built = build_yaml_agent(found.given, Axes(), instructions=found.instructions, folder=found.folder)
        structure = built.describe()
    axes = suggest_axes(structure)
    for each in axes["textual"]:
        if each["path"] == "instructions.inline" and found.prompt_file is not None:
            each["path"] = "instructions.file"
    document = {"evaluations": {"optimizer": {"axes": axes}}}
    echo(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120), nl=False)


def _print_plan(parsed: ParsedConfig) -> None:
    from promptiter.cli.run_execution import prepare_run
    from promptiter.cli.test_execution import print_warnings
    from promptiter.cli.views.optimizer_plan import print_plan

    configured = prepare_run(parsed)
    configured.gateway.cache.close()
    print_warnings(configured)
    print_plan(configured)


def _print_baseline(parsed: ParsedConfig) -> None:
    import asyncio

    from promptiter.cli.run_execution import prepare_run
    from promptiter.cli.views.optimizer_plan import print_losses
    from promptiter.config.build import build_evaluation

    prepare_run(parsed).gateway.cache.close()  # all checks
    for name in ("train",) if parsed.config.cases else ("train", "validation"):
        built = build_evaluation(parsed, name)
        done = asyncio.run(built.evaluate())
        built.gateway.cache.close()
        print_losses("hold-out" if name == "validation" else name, done.evaluation)
