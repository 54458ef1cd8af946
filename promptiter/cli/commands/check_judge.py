"""`promptiter check --judge`: compare a judge with the labels of people."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from promptiter.cli.output import console, divert_prints, echo, write_text
from promptiter.cli.views.judge_check import judge_check_as_json, print_judge_check, show_judging
from promptiter.config.build import build_configured_evaluator
from promptiter.config.file import FILE_NAME, ParsedConfig, read_config, read_document
from promptiter.errors import SetupError, nearest
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.evaluation.data.labels import LabelSet, load_labels
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.judge_check import JudgeCheck, check_judge
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.metrics.metric import Metric
from promptiter.llm.models import any_simulated
from promptiter.runs.judge_checks import remember_check
from promptiter.wording import join_names

_SCALE = re.compile(r"\s*(-?[\d.]+)\s*(?:-|to|\.\.)\s*(-?[\d.]+)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """What to compare: the labels, the metric by name, and the grades of the labels."""

    labels: Path
    metric: str | None = None
    scale: str | None = None
    judgements: int = 3


def compare_judge(
    options: JudgeOptions,
    *,
    eval_sets: Sequence[str],
    config: Path | None,
    metrics: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Check a judge of the configuration, or of a metrics file, print how it compares, and remember it."""
    parsed = _read(config, metrics)
    scale = None if options.scale is None else _parse_scale(options.scale)
    labels = load_labels(options.labels, cases=_load_cases(parsed, eval_sets), scale=scale)
    with divert_prints():
        evaluator = build_configured_evaluator(parsed)
        try:
            metric = _choose_metric(evaluator, options.metric)
            _check_references(metric, labels)
            check = asyncio.run(_check(evaluator, metric, labels, options.judgements))
        finally:
            evaluator.gateway.cache.close()
    is_simulated = any_simulated(evaluator.gateway.ledger.snapshot().by_model())
    if parsed.file is not None and check.definition:
        kept = remember_check(parsed.config.runs, check)
        if kept.answers > check.answers:
            note = f"note: the earlier check with {kept.answers} labels is kept for runs, since it says more"
            echo(note, color="yellow", err=True)
    if as_json:
        write_text(judge_check_as_json(check, is_simulated=is_simulated), output)
        return
    screen = console(output)
    print_judge_check(screen, check, is_simulated=is_simulated)
    if output is not None:
        screen.file.close()


def _read(config: Path | None, metrics: Path | None) -> ParsedConfig:
    """The configuration; with a metrics file alone, one that has nothing else."""
    settings = {} if metrics is None else {"metrics": str(metrics.absolute())}
    if config is None and metrics is not None and not Path(FILE_NAME).exists():
        return replace(read_document({}, file=Path(FILE_NAME), settings=settings), file=None)
    return read_config(config or Path(FILE_NAME), settings=settings)


def _parse_scale(written: str) -> tuple[float, float]:
    found = _SCALE.fullmatch(written)
    try:
        low, high = (float(each) for each in (found.groups() if found else ()))
    except ValueError:
        low = high = 0.0
    if not low < high:
        raise SetupError(f"--scale is {written!r}; give the lowest and the highest grade, such as 1-5")
    return low, high


def _load_cases(parsed: ParsedConfig, eval_sets: Sequence[str]) -> Iterable[EvalCase]:
    """The cases that labels may name: those of the given eval sets, or of the configuration."""
    settings = parsed.config
    sets = (settings.train, settings.validation, settings.cases, settings.test, settings.data)
    files = list(eval_sets) or [str(file) for each in sets for file in each if Path(file).exists()]
    return [case for file in files for case in load_eval_set(file).cases]


def _choose_metric(evaluator: Evaluator, name: str | None) -> Metric:
    known = {metric.name: metric for metric in evaluator.metrics}
    judges = [metric for metric in evaluator.metrics if isinstance(metric, JudgeMetric)]
    names = join_names([metric.name for metric in judges or evaluator.metrics], limit=8)
    if name is not None:
        if name not in known:
            raise SetupError(f"there is no metric {name!r}{nearest(name, list(known))}; the metrics are {names}")
        return known[name]
    if not judges:
        raise SetupError(f"no metric is a judge; name the metric that judges as --metric NAME, one of {names}")
    if len(judges) > 1:
        raise SetupError(f"there are several judges; name one as --metric NAME, one of {names}")
    return judges[0]


def _check_references(metric: Metric, labels: LabelSet) -> None:
    """Refuse labels without references for a metric that compares with them."""
    if metric.needs_reference and not any(
        turn.expected is not None for each in labels.answers for turn in each.case.turns
    ):
        advice = f"add the column `expected` to {labels.source}, or the column `case` with cases that have references"
        raise SetupError(f"metric {metric.name!r} needs references, and the labels have none; {advice}")


async def _check(evaluator: Evaluator, metric: Metric, labels: LabelSet, judgements: int) -> JudgeCheck:
    with show_judging(len(labels.answers) * judgements, metric.name) as on_judgement:
        gateway = evaluator.gateway.with_seed(evaluator.seed)
        return await check_judge(metric, labels, gateway=gateway, judgements=judgements, on_judgement=on_judgement)
