"""`promptiter check`: whether an eval set can tell a better agent from a worse one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.load import build_evaluator, load_agent, metrics_file
from promptiter.cli.options import AsJson, Output
from promptiter.cli.output import console, write_text
from promptiter.cli.views.check import Checked, findings_as_json, print_checked
from promptiter.llm.models import any_simulated

if TYPE_CHECKING:
    from promptiter.agents.base import Agent
    from promptiter.evaluation.evaluator import Evaluator

JUDGE_REPEATS = 2
"""So often each output is judged; with several cases and repeats that is enough to see a judge's noise."""

INVALID_EVAL = 7


def check(
    eval_sets: Annotated[
        list[str],
        typer.Argument(metavar="EVAL_SET", help="Eval sets (JSON, JSONL, CSV, YAML); several are compared."),
    ],
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", metavar="AGENT", help="Also run this agent, as module:attr.")
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics",
            "-m",
            metavar="FILE",
            help="Metrics; by default, with --agent, test_config.json beside the eval set.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=2, metavar="N", help="Runs of each case, with --agent.")] = 3,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Check eval sets for problems: leaks, overlap, noise.

    Also finds contradicting or missing references and duplicates; with --agent, cases that always fail, always pass or
    flip. Exits 7 if references contradict each other, eval sets overlap, or no case can be scored.
    """
    from promptiter.evaluation.data.evalset import load_eval_set
    from promptiter.evaluation.data.health import check_cases, find_overlaps

    subject = load_agent(agent) if agent is not None else None
    loaded = [(source, load_eval_set(source)) for source in eval_sets]
    evaluators = [_evaluator(source, metrics) if metrics or subject is not None else None for source, _ in loaded]
    checked = [
        Checked(source, eval_set, check_cases(eval_set, needs_reference=_needs_reference(evaluator)))
        for (source, eval_set), evaluator in zip(loaded, evaluators, strict=True)
    ]
    if subject is not None:
        judged = [evaluator for evaluator in evaluators if evaluator is not None]
        checked = asyncio.run(_measured(subject, checked, judged, repeats=repeats))
    shared = find_overlaps(loaded)
    if as_json:
        write_text(findings_as_json(checked, shared), output)
    else:
        screen = console(output)
        print_checked(screen, checked, shared)
        if output is not None:
            screen.file.close()
    if shared or any(each.health.is_serious for each in checked):
        raise typer.Exit(INVALID_EVAL)


def _evaluator(source: str, metrics: Path | None) -> Evaluator:
    from promptiter.evaluation.metrics.metric_config import load_eval_config
    from promptiter.llm.gateway import Gateway

    return build_evaluator(load_eval_config(metrics_file(source, metrics)), Gateway())


def _needs_reference(evaluator: Evaluator | None) -> bool:
    """Whether a case without a reference is a finding: where the metrics are unknown, it is."""
    return evaluator is None or any(metric.needs_reference for metric in evaluator.metrics)


async def _measured(
    agent: Agent, checked: Sequence[Checked], evaluators: Sequence[Evaluator], *, repeats: int
) -> list[Checked]:
    from promptiter.cli.views.evaluation import progress
    from promptiter.evaluation.data.health import check_runs
    from promptiter.evaluation.stats.metric_noise import measure_metric_noise

    measured = []
    for each, evaluator in zip(checked, evaluators, strict=True):
        with progress(len(each.eval_set.cases) * repeats, each.source) as on_row:
            found = await measure_metric_noise(
                evaluator, agent, each.eval_set, repeats=repeats, judge_repeats=JUDGE_REPEATS, on_row=on_row
            )
        of_runs = check_runs([found.evaluation])
        failing = sum(finding.kind == "always_errors" for finding in of_runs)
        health = replace(
            each.health,
            scorable=min(each.health.scorable, each.health.cases - failing),
            findings=(*each.health.findings, *of_runs),
        )
        is_simulated = any_simulated(evaluator.gateway.ledger.snapshot().by_model())
        measured.append(replace(each, health=health, noise=found, is_simulated=is_simulated))
    return measured
