"""`promptiter check`: find problems in eval sets before they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.load import read_subject, read_with_metrics
from promptiter.cli.options import AsJson, ConfigOption, Output
from promptiter.cli.output import console, write_text
from promptiter.errors import SetupError

if TYPE_CHECKING:
    from promptiter.agents.base import Agent
    from promptiter.cli.views.check import CheckedSet
    from promptiter.config.configured_run import ConfiguredEvaluation
    from promptiter.evaluation.data.case import EvalSet
    from promptiter.evaluation.evaluator import Evaluator

INVALID_EVAL = 7


def check(
    eval_sets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EVAL_SET",
            help="Eval sets (JSON, JSONL, CSV, YAML), or a configuration file or its folder for its sets; several are "
            "compared.",
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", metavar="AGENT", help="Also run this agent, as module:attr.")
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics",
            "-m",
            metavar="FILE",
            help="Metrics; by default, with --agent, those of CONFIG, or beside the eval set.",
        ),
    ] = None,
    config: ConfigOption = None,
    repeats: Annotated[
        int,
        typer.Option(
            min=2, metavar="N", help="Runs of each case with --agent, judgements of each answer with --judge."
        ),
    ] = 3,
    judge: Annotated[
        Path | None,
        typer.Option(
            "--judge",
            metavar="LABELS",
            help="Compare a judge with people's labels, a CSV file with the columns input, output, label, expected.",
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="The metric to compare, with --judge; by default the only judge.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(metavar="LOW-HIGH", help="The grades of the labels, with --judge, such as 1-5.")
    ] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Check eval sets for leaks, overlap and noise, or a judge.

    Also finds contradicting or missing references and duplicates; with --agent, cases that always fail, always pass or
    flip. Exits 7 if references contradict each other, eval sets overlap, or no case can be scored.

    With --judge, compares a judge of CONFIG or --metrics with people instead: agreement beyond chance, noise, bias.
    """
    from promptiter.cli.views.check import CheckedSet, findings_as_json, print_findings
    from promptiter.evaluation.data.evalset import load_eval_set
    from promptiter.evaluation.data.health import check_cases, find_overlaps

    if judge is not None:
        from promptiter.cli.commands.check_judge import JudgeOptions, compare_judge

        options = JudgeOptions(labels=judge, metric=metric, scale=scale, judgements=repeats)
        given_sets, config = _separate_config(eval_sets or [], config)
        compare_judge(options, eval_sets=given_sets, config=config, metrics=metrics, as_json=as_json, output=output)
        return
    for option, value in {"--metric": metric, "--scale": scale}.items():
        if value is not None:
            raise SetupError(f"{option} is for --judge; give the labels as --judge LABELS, too")
    sources, test_files, config = _find_eval_sets(eval_sets or [], config)
    loaded = [(source, load_eval_set(source)) for source in sources]
    notes = _check_test_set([eval_set for source, eval_set in loaded if source in test_files])
    built = [_build(agent, source, metrics, config) for source in sources] if agent is not None else []
    given = _load_evaluator(metrics) if metrics is not None and agent is None else None
    evaluators: list[Evaluator | None] = [each.evaluator for each in built]
    evaluators = evaluators or [given] * len(loaded)
    checked = [
        CheckedSet(
            source,
            eval_set,
            check_cases(
                eval_set,
                needs_reference=_needs_reference(evaluator),
                needs_tool_calls=_needs_tool_calls(evaluator),
                parse_reference=_choose_parser(evaluator),
            ),
        )
        for (source, eval_set), evaluator in zip(loaded, evaluators, strict=True)
    ]
    if built:
        checked = asyncio.run(_measure(built[0].agent, checked, [each.evaluator for each in built], repeats=repeats))
        for each in built:
            each.gateway.cache.close()
    shared = find_overlaps(loaded)
    if as_json:
        write_text(findings_as_json(checked, shared, notes), output)
    else:
        screen = console(output)
        print_findings(screen, checked, shared, notes)
        if output is not None:
            screen.file.close()
    if shared or any(each.health.is_serious for each in checked):
        raise typer.Exit(INVALID_EVAL)


def _find_eval_sets(eval_sets: list[str], config: Path | None) -> tuple[list[str], list[str], Path | None]:
    """The eval set files, those of the test set, and the configuration if one applies.

    The files are those given, or those of the configuration.
    """
    eval_sets, config = _separate_config(eval_sets, config)
    if eval_sets:
        return eval_sets, [], config
    settings = read_subject(None, config=config).config
    sets = (settings.train, settings.validation, settings.cases, settings.test, settings.data)
    files = [str(file) for each in sets for file in each]
    if not files:
        raise SetupError("the configuration has no eval sets; add train and validation to it, or give files here")
    return files, [str(file) for file in settings.test], config


def _check_test_set(eval_sets: Sequence[EvalSet]) -> list[str]:
    """A note if there is a test set with too few different cases to decide anything."""
    from promptiter.evaluation.stats.new_cases import explain_too_few_new_cases
    from promptiter.runlog.case_uses import list_case_digests

    found = {digest for each in eval_sets for digest in list_case_digests(each)}
    few = explain_too_few_new_cases(len(found)) if found else None
    return [] if few is None else [f"a run will not use the test set: {few}"]


def _separate_config(eval_sets: list[str], config: Path | None) -> tuple[list[str], Path | None]:
    """The eval sets that were given, and the configuration: by --config, or in place of eval sets."""
    project = eval_sets[0] if len(eval_sets) == 1 else None
    if project is not None and config is None and (Path(project).is_dir() or _is_configuration(Path(project))):
        return [], Path(project)
    return eval_sets, config


def _is_configuration(file: Path) -> bool:
    """Whether a file is a configuration: by its name, or a YAML file with keys that no eval set has."""
    from promptiter.config.file import FILE_NAME, read_file

    if file.name == FILE_NAME:
        return True
    if file.suffix not in (".yaml", ".yml") or not file.is_file():
        return False
    try:
        return not _CONFIGURATION_KEYS.isdisjoint(read_file(file))
    except SetupError:  # a list of cases, or a mistake that is reported when the eval set is read
        return False


_CONFIGURATION_KEYS = frozenset(("agent", "train", "validation", "data"))


def _build(agent: str, source: str, metrics: Path | None, config: Path | None) -> ConfiguredEvaluation:
    from promptiter.config.build import build_evaluation

    return build_evaluation(read_with_metrics(agent, source, config=config, metrics=metrics), source)


def _load_evaluator(metrics: Path) -> Evaluator:
    from promptiter.config.loading import build_evaluator
    from promptiter.evaluation.metrics.metric_config import load_eval_config
    from promptiter.llm.gateway import Gateway

    return build_evaluator(load_eval_config(metrics), Gateway())


def _needs_reference(evaluator: Evaluator | None) -> bool:
    """Whether a missing reference is a finding; yes if the metrics are unknown."""
    return evaluator is None or any(metric.needs_reference for metric in evaluator.metrics)


def _needs_tool_calls(evaluator: Evaluator | None) -> bool:
    from promptiter.evaluation.metrics.builtin import TrajectoryMetric

    return evaluator is not None and any(isinstance(metric, TrajectoryMetric) for metric in evaluator.metrics)


def _choose_parser(evaluator: Evaluator | None) -> Callable[[str], object] | None:
    """What reads references, if a metric compares them as JSON."""
    from promptiter.evaluation.metrics.builtin import FinalResponseMetric
    from promptiter.evaluation.metrics.json_match import parse_json

    metrics = () if evaluator is None else evaluator.metrics
    criteria = [metric.criterion.json for metric in metrics if isinstance(metric, FinalResponseMetric)]
    return parse_json if any(each is not None and each.needs_reference for each in criteria) else None


async def _measure(
    agent: Agent, checked: Sequence[CheckedSet], evaluators: Sequence[Evaluator], *, repeats: int
) -> list[CheckedSet]:
    from promptiter.cli.views.evaluation import show_progress
    from promptiter.evaluation.data.health import check_runs
    from promptiter.evaluation.judgements import measure_metric_noise
    from promptiter.llm.models import any_simulated

    measured = []
    for each, evaluator in zip(checked, evaluators, strict=True):
        with show_progress(len(each.eval_set.cases) * repeats, each.source) as on_row:
            noise = await measure_metric_noise(evaluator, agent, each.eval_set, repeats=repeats, on_row=on_row)
        findings = check_runs([noise.evaluation])
        failing = sum(finding.kind == "always_errors" for finding in findings)
        health = replace(
            each.health,
            scorable=min(each.health.scorable, each.health.cases - failing),
            findings=(*each.health.findings, *findings),
        )
        is_simulated = any_simulated(evaluator.gateway.ledger.snapshot().by_model())
        measured.append(replace(each, health=health, noise=noise, is_simulated=is_simulated))
    return measured
