"""`promptiter evaluate`: run an agent over an eval set and score it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.load import collect_settings, read_with_metrics
from promptiter.cli.options import AsJson, Concurrency, ConfigOption, MaxUsd, Output, Seed, Subject
from promptiter.cli.output import console, divert_prints, echo, write_text
from promptiter.errors import SetupError

if TYPE_CHECKING:
    from promptiter.config.file import ParsedConfig


def evaluate(
    subject: Subject = None,
    eval_set: Annotated[
        str,
        typer.Option(
            "--eval-set",
            "-e",
            metavar="SET",
            help="train, validation, cases or test of CONFIG, or a file (JSON, JSONL, CSV, YAML); file:case is a case.",
        ),
    ] = "validation",
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics", "-m", metavar="FILE", help="Metrics; by default those of CONFIG, or beside the eval set."
        ),
    ] = None,
    config: ConfigOption = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", "-p", metavar="FILE", help="Run under this profile, not the baseline.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs of each case; by default num_runs of the metrics.")
    ] = None,
    concurrency: Concurrency = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Time limit for one answer.")
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Where model answers are cached: memory, or a .jsonl or .sqlite file."),
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="A model, or an agent or function as module:attr, that writes missing references."
        ),
    ] = None,
    max_usd: MaxUsd = None,
    allow_unknown_price: Annotated[
        bool, typer.Option("--allow-unknown-price", help="With --max-usd: also call models that have no known price.")
    ] = False,
    max_errored_fraction: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Unreliable above this share of failed runs.")
    ] = None,
    seed: Seed = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write a JUnit report.")] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Run an agent over an eval set and score it.

    Models, metrics and other settings come from promptiter.yaml, as for `promptiter run`; options override it.

    Exits 1 if a metric's mean is below its threshold.
    """
    for path in (junit, output):
        if path is not None and not path.absolute().parent.is_dir():
            raise SetupError(f"{str(path)!r} cannot be written: its folder does not exist")
    settings = collect_settings(
        initial_profile=profile,
        evaluation={
            "repeats": repeats,
            "concurrency": concurrency,
            "case_timeout_s": timeout_s,
            "max_errored_fraction": max_errored_fraction,
        },
        cache=cache if cache in (None, "memory") else Path(cache),
        teacher=teacher,
        budget={"max_usd": max_usd, "allow_unknown_price": allow_unknown_price or None},
        seed=seed,
    )
    given = read_with_metrics(subject, eval_set, config=config, metrics=metrics, settings=settings)
    run_evaluation(given, eval_set, junit=junit, as_json=as_json, output=output)


def run_evaluation(
    given: ParsedConfig, eval_set: str, *, junit: Path | None = None, as_json: bool = False, output: Path | None = None
) -> None:
    """Run the agent of a configuration over an eval set, and show the result. Exits 1 below a threshold."""
    from promptiter.cli.views import evaluation as evaluation_view
    from promptiter.config.build import build_evaluation
    from promptiter.evaluation.surface_reads import find_unread

    with divert_prints():
        built = build_evaluation(given, eval_set)
        evaluation_view.show_notes(built.agent)
        gateway, total = built.gateway, len(built.cases.cases) * built.evaluator.options.repeats
        with evaluation_view.show_progress(total, built.cases.id) as on_row:
            done = asyncio.run(built.evaluate(on_row=on_row))
    evaluation, cases = done.evaluation, done.cases
    for case_id, error in done.teacher_errors:
        echo(f"the teacher had no answer for {case_id}: {error}", err=True)
    evaluation_view.warn_of_uncounted_calls(evaluation, gateway)
    if junit is not None:
        write_text(evaluation_view.evaluation_as_junit(evaluation, cases), junit)
    if as_json:
        write_text(evaluation_view.evaluation_as_json(evaluation, gateway), output)
    else:
        screen = console(output)
        evaluation_view.print_evaluation(screen, evaluation, cases, gateway)
        evaluation_view.print_unread(
            screen, sorted(find_unread(built.agent.describe().surface_ids, (row.reads for row in evaluation.rows)))
        )
    gateway.cache.close()
    if not evaluation.is_reliable or not evaluation_view.reaches_thresholds(evaluation):
        raise typer.Exit(1)
