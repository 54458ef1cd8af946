"""`promptiter evaluate`: run an agent over an eval set and say how good it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from promptiter.cli.load import build_evaluator, load_agent, metrics_file
from promptiter.cli.options import AsJson, MaxUsd, Output
from promptiter.cli.output import console, write_text
from promptiter.errors import SetupError


def evaluate(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent, as module:attr.")],
    eval_set: Annotated[
        str,
        typer.Option("--eval-set", "-e", metavar="FILE", help="Eval set (JSON, JSONL, CSV, YAML); file:case is one."),
    ],
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics", "-m", metavar="FILE", help="Metrics; test_config.json beside the eval set if left out."
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", "-p", metavar="FILE", help="Run under this profile, not the baseline.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs of each case; by default num_runs of the metrics.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Cases to run at once.")] = 16,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Time limit for one answer.")
    ] = None,
    cache: Annotated[
        str, typer.Option(metavar="PATH", help="Where model answers are cached: memory, or a .jsonl or .sqlite file.")
    ] = "memory",
    teacher: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="A model, or an agent as module:attr, that writes missing references."),
    ] = None,
    max_usd: MaxUsd = None,
    allow_unknown_price: Annotated[
        bool, typer.Option("--allow-unknown-price", help="With --max-usd: also call models that have no known price.")
    ] = False,
    max_errored_fraction: Annotated[
        float, typer.Option(metavar="SHARE", help="Unreliable above this share of failed runs.")
    ] = 0.25,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed.")] = 0,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write a JUnit report.")] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Run an agent over an eval set and score it.

    Exits 1 if a metric's mean is below its threshold.
    """
    from promptiter.cli.views import evaluation as evaluation_view
    from promptiter.evaluation.data.evalset import load_eval_set
    from promptiter.evaluation.evaluator import EvaluationOptions
    from promptiter.evaluation.metrics.metric_config import load_eval_config
    from promptiter.evaluation.surface_reads import find_unread
    from promptiter.evaluation.teacher import write_expected_answers
    from promptiter.llm.budget import Budget
    from promptiter.llm.cache.cache import open_cache
    from promptiter.llm.gateway import Gateway
    from promptiter.profile import Profile

    for path in (junit, output):
        if path is not None and not path.absolute().parent.is_dir():
            raise SetupError(f"{str(path)!r} cannot be written: its folder does not exist")
    subject = load_agent(agent)
    cases = load_eval_set(eval_set)
    config = load_eval_config(metrics_file(eval_set, metrics))
    budget = Budget(max_usd=max_usd, allow_unknown_price=allow_unknown_price) if max_usd is not None else None
    gateway = Gateway(cache=open_cache(cache), budget=budget, concurrency=max(16, concurrency), seed=seed)
    options = EvaluationOptions(
        repeats=repeats or config.num_runs,
        concurrency=concurrency,
        case_timeout_s=timeout_s,
        max_errored_fraction=max_errored_fraction,
        seed=seed,
    )
    evaluator = build_evaluator(config, gateway, options)
    under = Profile.load(profile) if profile else None
    if teacher is not None:
        by = load_agent(teacher) if ":" in teacher else teacher
        taught = asyncio.run(write_expected_answers(cases, by, gateway=gateway, seed=seed))
        cases = taught.eval_set
        for case_id, error in taught.errors:
            typer.echo(f"the teacher had no answer for {case_id}: {error}", err=True)
    with evaluation_view.progress(len(cases.cases) * options.repeats, cases.id) as on_row:
        found = asyncio.run(evaluator.evaluate(subject, cases, under, on_row=on_row))
    if junit is not None:
        write_text(evaluation_view.as_junit(found, cases), junit)
    if as_json:
        write_text(evaluation_view.as_json(found, gateway), output)
    else:
        screen = console(output)
        evaluation_view.print_evaluation(screen, found, cases, gateway)
        evaluation_view.print_never_read(
            screen, sorted(find_unread(subject.describe().surface_ids, (row.reads for row in found.rows)))
        )
    gateway.cache.close()
    if not found.is_reliable or not evaluation_view.reaches_thresholds(found):
        raise typer.Exit(1)
