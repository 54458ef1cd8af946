"""What `promptiter check` found, on a terminal and as JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from promptiter.cli.output import json_text, print_rows
from traces.model import Json
from traces.text import cut, one_line

if TYPE_CHECKING:
    from rich.console import Console

    from promptiter.evaluation.data.case import EvalCase, EvalSet
    from promptiter.evaluation.data.health import Health, HealthFinding, HealthKind
from promptiter.evaluation.stats.metric_noise import MetricNoiseReport
from promptiter.evaluation.stats.noise import NoiseReport

SHOWN = 20
SHOWN_CASES = 6


@dataclass(frozen=True, slots=True)
class Checked:
    """One eval set, what was found in it, and the noise of its metrics if an agent was run, on a real model or not."""

    source: str
    eval_set: EvalSet
    health: Health
    noise: MetricNoiseReport | None = None
    is_simulated: bool = False


def findings_as_json(checked: Sequence[Checked], shared: Sequence[HealthFinding]) -> str:
    document = {
        "schema_version": 1,
        "is_serious": bool(shared) or any(each.health.is_serious for each in checked),
        "eval_sets": [
            {
                "source": each.source,
                "eval_set_id": each.health.eval_set_id,
                "cases": each.health.cases,
                "scorable": each.health.scorable,
                "counts": each.health.counts,
                "findings": each.health.findings,
                "noise": each.noise and _noise_as_plain(each.noise, is_simulated=each.is_simulated),
            }
            for each in checked
        ],
        "overlaps": shared,
    }
    return json_text(document)


def print_checked(screen: Console, checked: Sequence[Checked], shared: Sequence[HealthFinding]) -> None:
    from rich.text import Text

    texts = {(each.source, case.id): _text(case) for each in checked for case in each.eval_set.cases}
    for each in checked:
        _print_one(screen, each, texts)
    if shared:
        _print_kind(screen, "overlap", shared, texts, source="")
    serious = [f"mend {one_line(each.source)}" for each in checked if each.health.is_serious]
    if serious or shared:
        what = [*serious, *(["keep the eval sets apart"] if shared else [])]
        screen.print(Text(f"not fit to decide anything: {', '.join(what)}", "bold red"))
    else:
        screen.print(Text("nothing serious", "green"))


def _print_one(screen: Console, checked: Checked, texts: Mapping[tuple[str, str], str]) -> None:
    from rich.text import Text

    health = checked.health
    counts = {kind: health.counts[kind] for kind in _KINDS if kind in health.counts}
    told = ", ".join(f"{number:,} {_KINDS[kind].counted(number)}" for kind, number in counts.items())
    headline = f"  {health.cases:,} case{'s' if health.cases != 1 else ''}, {told or 'no findings'}"
    screen.print(Text.assemble((one_line(checked.source), "bold"), headline))
    if not health.scorable:
        lacking = not any(finding.kind == "always_errors" for finding in health.findings)
        why = "none has a reference to compare with" if lacking else "see below why the runs failed"
        screen.print(Text(f"no case can be scored: {why}", "bold red"))
    screen.print()
    for kind in counts:
        findings = [finding for finding in health.findings if finding.kind == kind]
        _print_kind(screen, kind, findings, texts, source=checked.source)
    if checked.noise is not None:
        _print_noise(screen, checked.noise, is_simulated=checked.is_simulated)


def _print_kind(
    screen: Console,
    kind: HealthKind,
    findings: Sequence[HealthFinding],
    texts: Mapping[tuple[str, str], str],
    *,
    source: str,
) -> None:
    from rich.table import Table
    from rich.text import Text

    words = _KINDS[kind]
    screen.print(Text.assemble((f"{len(findings):,} {words.counted(len(findings))}", words.style), f": {words.advice}"))
    has_detail = any(finding.detail for finding in findings)
    table = Table(box=None, header_style="dim", pad_edge=False, expand=True)
    table.add_column("cases", no_wrap=True, overflow="ellipsis", max_width=48)
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    if has_detail:
        table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for finding in findings[:SHOWN]:
        sources = finding.sources or (source,) * len(finding.case_ids)
        text = texts.get((sources[0], finding.case_ids[0]), "")
        detail = [Text(cut(one_line(finding.detail), 200), "dim")] if has_detail else []
        table.add_row(Text(_cases(finding)), Text(cut(one_line(text), 200)), *detail)
    screen.print(table)
    if len(findings) > SHOWN:
        screen.print(Text(f"… {len(findings) - SHOWN:,} more; --json lists all", "dim"))
    screen.print()


def _noise_as_plain(noise: MetricNoiseReport, *, is_simulated: bool) -> dict[str, Json]:
    from promptiter.cli.views.noise import as_plain

    return {
        **as_plain(NoiseReport(evaluation=noise.evaluation)),
        "judge_repeats": noise.judge_repeats,
        "is_simulated": is_simulated,
        "pass_rate": noise.evaluation.pass_rate,
        "metrics": noise.metrics,
    }


def _print_noise(screen: Console, noise: MetricNoiseReport, *, is_simulated: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from promptiter.cli.views.noise import noise_rows

    report = NoiseReport(evaluation=noise.evaluation)
    sample = f"{report.repeats} repeats of each case, {noise.judge_repeats} judgements each"
    title = "noise (simulated)" if is_simulated else "noise"
    screen.print(Text.assemble((title, "bold"), f": standard deviations of one score, {sample}"))
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("metric")
    for name in ("agent", "judge"):
        table.add_column(name, justify="right")
    table.add_column("")
    for metric in noise.metrics:
        advice = _noise_advice(metric.agent_variance, metric.judge_variance)
        variances = (metric.agent_variance, metric.judge_variance)
        table.add_row(Text(one_line(metric.metric)), *map(_deviation, variances), Text(advice, "dim"))
    screen.print(table)
    screen.print()
    print_rows(screen, noise_rows(report))
    screen.print()


def _noise_advice(agent: float | None, judge: float | None) -> str:
    if agent is None or judge is None:
        return "too few scores to tell; mend what could not be scored"
    if judge > agent:
        return "the judge is noisier than the agent: raise num_samples, or sharpen the rubrics"
    if agent > 0:
        return "the agent's answers vary: use more repeats"
    return "every run scores the same: more repeats tell nothing new"


def _deviation(variance: float | None) -> str:
    return "unknown" if variance is None else f"{math.sqrt(variance):.3f}"


def _cases(finding: HealthFinding) -> str:
    ids: Iterable[str] = finding.case_ids
    if finding.sources:
        folder = os.path.commonpath([Path(source).absolute().parent for source in finding.sources])
        names = [Path(source).absolute().relative_to(folder) for source in finding.sources]
        ids = (f"{name}:{case_id}" for name, case_id in zip(names, finding.case_ids, strict=True))
    listed = [one_line(case_id) for case_id in ids]
    more = f" and {len(listed) - SHOWN_CASES} more" if len(listed) > SHOWN_CASES else ""
    return ", ".join(listed[:SHOWN_CASES]) + more


def _text(case: EvalCase) -> str:
    if case.scenario is not None:
        return case.scenario.starting_prompt
    return " / ".join(turn.user for turn in case.turns or case.actual)


@dataclass(frozen=True, slots=True)
class _Words:
    one: str
    many: str
    advice: str
    style: str = "bold yellow"

    def counted(self, number: int) -> str:
        return self.one if number == 1 else self.many


_KINDS: Mapping[HealthKind, _Words] = {
    "contradiction": _Words(
        "contradiction",
        "contradictions",
        "the same question has different expected answers; decide which is right, or say in the input what differs.",
        "bold red",
    ),
    "overlap": _Words(
        "overlap", "overlaps", "the same case stands in several eval sets; keep it in one of them.", "bold red"
    ),
    "duplicate": _Words("duplicate", "duplicates", "the same case counts more than once; keep one of each."),
    "near_duplicate": _Words(
        "near duplicate",
        "near duplicates",
        "these ask almost the same; keep one unless the difference is the point, and all in the same split.",
    ),
    "missing_reference": _Words(
        "case without a reference",
        "cases without a reference",
        "write the expected answer; if your metrics need none, say so with --metrics.",
    ),
    "empty_reference": _Words(
        "empty reference", "empty references", "the expected answer is blank; write it, or leave the field out."
    ),
    "leaked_reference": _Words(
        "leaked reference",
        "leaked references",
        "the expected answer stands in the question, so repeating it passes; take it out if it is no quotation.",
    ),
    "long_input": _Words(
        "very long input", "very long inputs", "far longer than the others; check that nothing was pasted by mistake."
    ),
    "always_errors": _Words(
        "case that always fails to be scored",
        "cases that always fail to be scored",
        "no run gave a score; mend the agent, the metric or the case.",
        "bold red",
    ),
    "never_passes": _Words(
        "case that never passes",
        "cases that never pass",
        "too hard or wrong; check the reference and the threshold before you optimize for it.",
    ),
    "flips": _Words(
        "case that flips",
        "cases that flip",
        "the same agent passes and fails; use more repeats, or make the case and its metric clearer.",
    ),
    "always_passes": _Words(
        "case that always passes",
        "cases that always pass",
        "no room for improvement; keep as a guard against regressions, and add harder ones.",
        "bold",
    ),
}
