"""Headroom and the noise of metrics: whether there is anything to win, and which metric is noisy because of whom."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from promptiter.cli.output import new_table
from promptiter.evaluation.stats.headroom import ContenderResult, Headroom
from promptiter.evaluation.stats.metric_noise import MetricNoise
from promptiter.evaluation.stats.noise import NoiseReport
from promptiter.wording import join_names, plural
from traces.model import Json
from traces.text import one_line

STRIP = 40
"""The most cases that are drawn one by one; more of them are drawn to scale."""

ALWAYS, SOMETIMES, NEVER = "█", "▒", "·"
MAX_NAMED = 6

JUDGE_SHARE = 0.2
"""From this share of the noise on, a pass in some repeats may be luck with the judge."""


def headroom_rows(report: NoiseReport) -> Iterator[tuple[str, str]]:
    """Whether there is anything to win, as labelled rows."""
    found, name = report.headroom, "Headroom"
    cases = len(report.cases)
    counts = f"{len(found.always)} of {plural(cases, 'case')} pass in every repeat"
    yield name, f"{draw_cases(found)}  {counts}, {len(found.sometimes)} in some, {len(found.never)} in none"
    if not found.failing and report.bound == "ceiling":
        yield name, "nothing to win: every run has the best score; add harder cases"
    if found.failing:
        lucky, figure = len(found.sometimes), report.objective.replace("_", " ")
        counts = f"{lucky} of {plural(len(found.failing), 'failing case')} {'passes' if lucky == 1 else 'pass'}"
        means = f"{figure} {abs(found.mean):.3f}, or {abs(found.best_of_repeats):.3f} if each case had its best repeat"
        yield name, f"{counts} in at least one of {report.repeats} repeats; {means}"
        if (share := report.split.judge_share or 0.0) >= JUDGE_SHARE:
            whose = "most" if share > 0.5 else "some"
            yield (
                name,
                f"{whose} of that may be luck with the judge, whose share of the noise is {share:.0%}: fix it first",
            )
    for each in found.reached:
        yield name, _describe_reached(each, found)
    if found.saturated and found.failing:
        yield name, f"every run meets {_list_metrics(found.saturated)}: nothing to win there"
    if found.never_met:
        metrics = _list_metrics(found.never_met)
        yield name, f"no run meets {metrics}: the prompts do not ask for it, or its references or threshold are wrong"


def draw_cases(found: Headroom) -> str:
    """One sign for each case: passes in every repeat, in some, in none."""
    counts = [len(found.always), len(found.sometimes), len(found.never)]
    scale = min(1.0, STRIP / max(1, sum(counts)))
    return "".join(
        sign * math.ceil(count * scale) for sign, count in zip((ALWAYS, SOMETIMES, NEVER), counts, strict=True)
    )


def headroom_as_plain(report: NoiseReport) -> dict[str, Json]:
    found = report.headroom
    return {
        "always": list(found.always),
        "sometimes": list(found.sometimes),
        "never": list(found.never),
        "mean": found.mean,
        "best_of_repeats": found.best_of_repeats,
        "saturated": list(found.saturated),
        "never_met": list(found.never_met),
        "reached": [
            {
                "name": each.name,
                "problem": each.problem,
                "mean_score": each.evaluation and each.evaluation.mean_score,
                "pass_rate": each.evaluation and each.evaluation.pass_rate,
                "passed_failing": [case_id for case_id in found.failing if case_id in each.passed],
            }
            for each in found.reached
        ],
    }


def print_metrics(screen: Console, report: NoiseReport) -> None:
    """A table of the metrics: mean, how many runs meet them, and the noise of agent and judge."""
    is_split = bool(report.rejudged)
    table = new_table("metric", ">mean", ">met", *((">agent noise", ">judge noise") if is_split else ()))
    table.add_column("")
    for metric in report.metrics:
        noise = map(_format_deviation, (metric.agent_variance, metric.judge_variance)) if is_split else ()
        table.add_row(
            Text(one_line(metric.metric)),
            "unscored" if metric.mean is None else f"{metric.mean:.3f}",
            "" if metric.met is None else f"{metric.met:.0%}",
            *(noise if metric.bound is None else ("unknown",) * 2 * is_split),
            Text(_advise(metric, is_split=is_split), "dim"),
        )
    screen.print(table)


def describe_sample(report: NoiseReport) -> str:
    judged = f", each judged {len(report.judgements)} times" if report.rejudged else ""
    return f"{report.repeats} repeats of each case{judged}"


def _advise(metric: MetricNoise, *, is_split: bool) -> str:
    agent, judge = metric.agent_variance, metric.judge_variance
    if metric.bound is not None:
        return {
            "floor": "every score is 0, which says nothing about noise",
            "ceiling": "every score is 1, which says nothing about noise",
            "either": "each case always scores 0 or 1, and noise shows in between",
        }[metric.bound]
    if not is_split:
        return ""
    if agent is None or judge is None:
        return "too few scores; fix what could not be scored"
    if judge > agent:
        return "the judge is noisier than the agent: raise num_samples, or make the rubrics clearer"
    if agent > 0:
        return "the agent's answers vary: use more repeats"
    return "every run scored the same: more repeats add no evidence"


def _describe_reached(reached: ContenderResult, found: Headroom) -> str:
    name = "the teacher" if reached.name == "teacher" else f"with {reached.name}"
    evaluation = reached.evaluation
    if evaluation is None:
        return f"{name}: not measured: {reached.problem}"
    measured = {case.case_id for case in evaluation.cases}
    failing = [case_id for case_id in found.failing if case_id in measured]
    mean = "unscored" if evaluation.mean_score is None else f"mean score {evaluation.mean_score:.3f}"
    fixed = f", among them {sum(case_id in reached.passed for case_id in failing)} of {len(failing)} that fail now"
    passed = f"{len(reached.passed)} of {plural(len(measured), 'case')} pass{fixed if failing else ''}"
    return f"{name}: {mean}, {passed}, in one run of each"


def _list_metrics(names: Sequence[str]) -> str:
    return join_names([one_line(name) for name in names], limit=MAX_NAMED)


def _format_deviation(variance: float | None) -> str:
    return "unknown" if variance is None else f"{math.sqrt(variance):.3f}"
