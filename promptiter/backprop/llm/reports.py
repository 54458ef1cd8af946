"""Reports: what was wrong with a run, one numbered finding F1, F2, … at a time, so that blame can cite them.

A surface is then patched for the findings that it can help, not for all that went wrong in its runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from promptiter.backprop.llm.truncation import PromptSection, Quote
from promptiter.evaluation.score import Finding
from promptiter.grouping import group_by
from promptiter.stages.losses import Category, Loss, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One thing that was wrong with a run, and the steps where it was found."""

    text: str
    severity: Severity
    category: Category
    findings: tuple[Finding, ...] = ()
    step_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CitedReports:
    """The reports that an entry of an answer explains: their findings and texts, and the worst of them."""

    findings: tuple[Finding, ...]
    texts: tuple[str, ...]
    worst: Report | None

    @classmethod
    def of(cls, reports: Sequence[Report]) -> CitedReports:
        worst = min(reports, key=lambda report: report.severity, default=None)
        return cls(collect_findings(reports), tuple([report.text for report in reports]), worst)


def collect_reports(losses: Iterable[Loss]) -> tuple[Report, ...]:
    """The distinct reports of losses that were split, sorted, so that the order of the metrics makes no difference."""
    return tuple(
        Report(
            text=text,
            severity=min(loss.severity for loss in same),
            category=same[0].category,
            findings=same[0].findings,
            step_ids=tuple(dict.fromkeys(loss.step_id for loss in same)),
        )
        for text, same in sorted(group_by(losses, lambda loss: loss.report).items())
    )


def alias_reports(reports: Iterable[Report], *, first: int = 1) -> dict[str, Report]:
    """The reports by their aliases in the prompt and in the answer."""
    return {f"F{number}": report for number, report in enumerate(reports, first)}


def cite_reports(
    cited: Iterable[str], reports: Mapping[str, Report], *, otherwise: Sequence[Report]
) -> tuple[Report, ...]:
    """The reports that an answer cites by alias; if it cites none of them, the others that are given."""
    return tuple(reports[alias] for alias in dict.fromkeys(cited) if alias in reports) or tuple(otherwise)


def collect_findings(reports: Iterable[Report]) -> tuple[Finding, ...]:
    """The findings of reports, each once. Findings hold JSON values and cannot be hashed."""
    findings = [finding for report in reports for finding in report.findings]
    return tuple({repr(finding): finding for finding in findings}.values() if len(findings) > 1 else findings)


def collect_criteria(losses: Iterable[Loss]) -> dict[str, str]:
    """What the metrics of losses look at, by name, as far as they say so."""
    return {loss.metric: loss.criterion for loss in losses if loss.criterion}


def build_criteria_section(criteria: Mapping[str, str]) -> list[PromptSection]:
    """Build the section that says what the metrics look at, if that is known."""
    lines = "\n".join(f"{name}: {criteria[name]}" for name in sorted(criteria) if criteria[name])
    quotes = (Quote("metrics", lines),)
    return [PromptSection(title="# What the metrics look at", quotes=quotes, weight=5)] if lines else []
