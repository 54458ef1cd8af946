"""The findings of `promptiter check`, on a terminal and as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from promptiter.cli.output import json_text, print_rows
from promptiter.cli.views.headroom import describe_sample, headroom_rows, print_metrics
from promptiter.cli.views.noise import noise_as_plain, noise_rows
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.data.health import Health, HealthFinding, HealthKind
from promptiter.evaluation.stats.noise import NoiseReport
from promptiter.wording import join_names, plural
from traces.model import Json
from traces.text import cut, one_line

MAX_FINDINGS = 20
"""Maximum number of findings of one kind that are printed."""

MAX_CASES = 6
"""Maximum number of cases that a finding names."""


@dataclass(frozen=True, slots=True)
class CheckedSet:
    """One eval set with its findings, and the noise of its metrics if an agent was run."""

    source: str
    eval_set: EvalSet
    health: Health
    noise: NoiseReport | None = None
    is_simulated: bool = False


def findings_as_json(checked: Sequence[CheckedSet], shared: Sequence[HealthFinding], notes: Sequence[str] = ()) -> str:
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
        "notes": list(notes),
    }
    return json_text(document)


def print_findings(
    screen: Console, checked: Sequence[CheckedSet], shared: Sequence[HealthFinding], notes: Sequence[str] = ()
) -> None:
    texts = {(each.source, case.id): _text(case) for each in checked for case in each.eval_set.cases}
    for each in checked:
        _print_set(screen, each, texts)
    if shared:
        _print_kind(screen, "overlap", shared, texts, source="")
    for note in notes:
        screen.print(Text(note, "yellow"))
    advice = [f"fix {one_line(each.source)}" for each in checked if each.health.is_serious]
    advice += ["remove shared cases from all eval sets but one"] if shared else []
    if advice:
        screen.print(Text(f"serious problems: {', '.join(advice)}", "bold red"))
    else:
        screen.print(Text("no serious problems", "green"))


def _print_set(screen: Console, checked: CheckedSet, texts: Mapping[tuple[str, str], str]) -> None:
    health = checked.health
    counts = {kind: health.counts[kind] for kind in _KINDS if kind in health.counts}
    findings = ", ".join(_KINDS[kind].count(number) for kind, number in counts.items())
    headline = f"  {plural(health.cases, 'case')}, {findings or 'no findings'}"
    screen.print(Text.assemble((one_line(checked.source), "bold"), headline))
    if not health.scorable:
        has_failed = any(finding.kind == "always_errors" for finding in health.findings)
        why = "see below why the runs failed" if has_failed else "none has a reference to compare with"
        screen.print(Text(f"no case can be scored: {why}", "bold red"))
    screen.print()
    for kind in counts:
        of_kind = [finding for finding in health.findings if finding.kind == kind]
        _print_kind(screen, kind, of_kind, texts, source=checked.source)
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
    words = _KINDS[kind]
    screen.print(Text.assemble((words.count(len(findings)), words.style), f": {words.advice}"))
    has_detail = any(finding.detail for finding in findings)
    table = Table(box=None, header_style="dim", pad_edge=False, expand=True)
    table.add_column("cases", no_wrap=True, overflow="ellipsis", max_width=48)
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    if has_detail:
        table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for finding in findings[:MAX_FINDINGS]:
        sources = finding.sources or (source,) * len(finding.case_ids)
        text = texts.get((sources[0], finding.case_ids[0]), "")
        detail = [Text(cut(one_line(finding.detail), 200), "dim")] if has_detail else []
        table.add_row(Text(_list_cases(finding)), Text(cut(one_line(text), 200)), *detail)
    screen.print(table)
    if len(findings) > MAX_FINDINGS:
        screen.print(Text(f"… {len(findings) - MAX_FINDINGS:,} more; --json lists all", "dim"))
    screen.print()


def _noise_as_plain(report: NoiseReport, *, is_simulated: bool) -> dict[str, Json]:
    return {
        **noise_as_plain(report),
        "is_simulated": is_simulated,
        "pass_rate": report.evaluation.pass_rate,
    }


def _print_noise(screen: Console, report: NoiseReport, *, is_simulated: bool) -> None:
    title = "noise (offline model)" if is_simulated else "noise"
    screen.print(Text.assemble((title, "bold"), f": standard deviations of one score, {describe_sample(report)}"))
    print_metrics(screen, report)
    screen.print()
    print_rows(screen, [*(() if report.problem else headroom_rows(report)), *noise_rows(report)])
    screen.print()


def _list_cases(finding: HealthFinding) -> str:
    ids: Iterable[str] = finding.case_ids
    if finding.sources:
        folder = os.path.commonpath([Path(source).absolute().parent for source in finding.sources])
        names = [Path(source).absolute().relative_to(folder) for source in finding.sources]
        ids = (f"{name}:{case_id}" for name, case_id in zip(names, finding.case_ids, strict=True))
    return join_names([one_line(case_id) for case_id in ids], limit=MAX_CASES)


def _text(case: EvalCase) -> str:
    if case.scenario is not None:
        return case.scenario.starting_prompt
    return " / ".join(turn.user for turn in case.turns or case.actual)


@dataclass(frozen=True, slots=True)
class _KindText:
    """How findings of one kind are printed."""

    one: str
    many: str
    advice: str
    style: str = "bold yellow"

    def count(self, number: int) -> str:
        return plural(number, self.one, self.many)


_KINDS: Mapping[HealthKind, _KindText] = {
    "contradiction": _KindText(
        "contradiction",
        "contradictions",
        "the same question has different expected answers; correct one, or make the difference clear in the input.",
        "bold red",
    ),
    "overlap": _KindText(
        "overlap", "overlaps", "the same case is in several eval sets; keep it in only one of them.", "bold red"
    ),
    "duplicate": _KindText("duplicate", "duplicates", "the same case counts more than once; keep one of each."),
    "near_duplicate": _KindText(
        "near duplicate",
        "near duplicates",
        "almost the same question; keep one unless the difference matters, and keep all in the same split.",
    ),
    "missing_reference": _KindText(
        "case without a reference",
        "cases without a reference",
        "add the expected answer; if your metrics need none, pass them with --metrics.",
    ),
    "missing_tool_calls": _KindText(
        "case without tool_calls",
        "cases without tool_calls",
        "the metrics compare tool calls; write the expected ones, or `tool_calls: []` if none is expected.",
        "bold red",
    ),
    "empty_reference": _KindText(
        "empty reference", "empty references", "the expected answer is blank; fill it in, or remove the field."
    ),
    "wrong_reference": _KindText(
        "reference that is not JSON",
        "references that are not JSON",
        "a metric compares JSON, so these cases cannot be scored; correct the expected answer.",
        "bold red",
    ),
    "leaked_reference": _KindText(
        "leaked reference",
        "leaked references",
        "the question contains the expected answer, so repeating it passes; remove it unless it is a quotation.",
    ),
    "long_input": _KindText(
        "very long input", "very long inputs", "far longer than the others; check for text that was pasted by mistake."
    ),
    "always_errors": _KindText(
        "case without a score",
        "cases without a score",
        "no run could be scored; fix the agent, the metric or the case.",
        "bold red",
    ),
    "never_passes": _KindText(
        "case that never passes",
        "cases that never pass",
        "too hard or wrong; check the reference and the threshold before optimizing.",
    ),
    "flips": _KindText(
        "case that flips",
        "cases that flip",
        "the same agent passes and fails; use more repeats, or make the case and its metric clearer.",
    ),
    "always_passes": _KindText(
        "case that always passes",
        "cases that always pass",
        "no room for improvement; keep them to catch regressions, and add harder ones.",
        "bold",
    ),
}
