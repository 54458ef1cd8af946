"""Judges of a task: models that judge the artifacts, or what the runner printed, by the rubrics of a file.

The figure of a judge is the share of rubrics that passed, and `judges` is the mean of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from promptiter.agents.base import AgentRun
from promptiter.errors import CommandError, ModelUnavailableError
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.metrics.criteria import JudgeConfig, JudgeModel, Rubric
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.metrics.judge_model import build_judges
from promptiter.evaluation.score import Finding
from promptiter.llm.gateway import Gateway
from promptiter.tasks.files.task import ALL_JUDGES, FileTask, TaskJudge
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReading:
    """The share of rubrics that passed, and those that did not."""

    metric: str
    value: float
    reason: str = ""
    findings: tuple[Finding, ...] = ()


def build_task_judges(task: FileTask, gateway: Gateway) -> dict[str, JudgeMetric]:
    """The judges of a task by the name of their figure."""
    return {each.metric: _build(each, gateway) for each in task.judges}


async def ask_judges(
    task: FileTask, judges: Mapping[str, JudgeMetric], texts: Mapping[str, str], output: str
) -> tuple[JudgeReading, ...]:
    """Ask every judge. CommandError if one gave no usable answer, ModelUnavailableError if its service failed."""
    readings = [await _ask(each, judges[each.metric], task, texts, output) for each in task.judges]
    if len(readings) > 1:
        mean = sum(each.value for each in readings) / len(readings)
        readings.append(JudgeReading(metric=ALL_JUDGES, value=mean))
    return tuple(readings)


def _build(judge: TaskJudge, gateway: Gateway) -> JudgeMetric:
    models = (JudgeModel(model_name=judge.model, generation_config=cast("Mapping[str, Json]", judge.options)),)
    rubrics = tuple(Rubric(id=str(number), text=each) for number, each in enumerate(judge.rubrics, start=1))
    config = JudgeConfig(models=models, models_aggregator="avg", rubrics=rubrics)
    place = f"judges: {judge.metric!r}"
    return JudgeMetric(
        name=judge.metric,
        kind="response",
        config=config,
        judges=build_judges(models, gateway, place=place),
        gateway=gateway,
    )


async def _ask(
    judge: TaskJudge, metric: JudgeMetric, task: FileTask, texts: Mapping[str, str], output: str
) -> JudgeReading:
    shown = output if judge.subject == "output" else _show_files(texts)
    question = task.description or f"Improve the files of the task {task.id}."
    case = EvalCase(id=task.id, turns=(Turn(user=question),))
    score = await metric(case, AgentRun(output=shown))
    if score.value is None:
        problem = score.error or "it gave no verdict"
        if score.is_outage:
            raise ModelUnavailableError(problem)
        raise CommandError(f"the judge {judge.metric!r} gave no verdict: {problem}")
    return JudgeReading(metric=judge.metric, value=score.value, reason=score.reason, findings=score.findings)


def _show_files(texts: Mapping[str, str]) -> str:
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n\n".join(f"File {path}:\n{text}" for path, text in texts.items())
