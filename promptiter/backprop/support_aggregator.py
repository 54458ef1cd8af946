"""SupportAggregator: merges gradients without a model, by how many cases give the same reason and how confidently.

Gradients that differ only in their literals give the same reason. The signal of a surface lists its reasons, best
supported first. `rank` separates the signals with enough support for a patch from the others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import ClassVar

from promptiter.grouping import group_by
from promptiter.stages.contracts import AggregateRequest, AggregateResult, SignalPoint, SurfaceGradient
from promptiter.stages.losses import Category, Severity

MOST_REASONS = 5
"""Maximum number of reasons listed in a signal."""


class SupportAggregator:
    """An Aggregator that makes no model calls. Equal requests give equal results."""

    model: ClassVar[None] = None  # asks no model

    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        """Return a signal that lists the reasons of the surface's gradients with their case counts."""
        severity: Severity = min((gradient.severity for gradient in request.gradients), default="P3")
        reasons = merge(request.gradients)
        points = tuple(each.as_point() for each in reasons[:MOST_REASONS])
        return build_signal(request, text=_describe_reasons(reasons, request), severity=severity, points=points)


def build_signal(
    request: AggregateRequest, *, text: str, severity: Severity, points: tuple[SignalPoint, ...] = ()
) -> AggregateResult:
    """Build the signal of a surface: count its cases by category and add up their support."""
    cases_by_category: defaultdict[Category, set[str]] = defaultdict(set)
    for gradient in request.gradients:
        cases_by_category[gradient.category].add(gradient.case_id)
    counts = {category: len(cases) for category, cases in cases_by_category.items()}
    return AggregateResult(
        surface_id=request.surface.id,
        text=text,
        severity=severity,
        categories=dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))),
        case_ids=tuple(sorted({gradient.case_id for gradient in request.gradients})),
        support=support_of(request.gradients),
        points=points,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedReason:
    """What several gradients have in common; `text` is that of the most confident one."""

    text: str
    category: Category
    severity: Severity
    case_ids: tuple[str, ...]
    support: float
    gradient_ids: tuple[str, ...] = ()

    def as_point(self) -> SignalPoint:
        return SignalPoint(text=self.text, case_ids=self.case_ids, gradient_ids=self.gradient_ids)


def merge(gradients: Iterable[SurfaceGradient]) -> tuple[SharedReason, ...]:
    """Merge gradients into reasons, the best supported first."""
    reasons = [
        SharedReason(
            text=min(same, key=lambda each: (-each.confidence, each.case_id, each.repeat, each.turn, each.text)).text,
            category=same[0].category,
            severity=min([each.severity for each in same]),
            case_ids=tuple(sorted({each.case_id for each in same})),
            support=support_of(same),
            gradient_ids=tuple([each.id for each in same if each.id]),
        )
        for same in group_by(gradients, _build_merge_key).values()
    ]
    return tuple(sorted(reasons, key=lambda reason: (-reason.support, reason.severity, reason.text)))


def support_of(gradients: Iterable[SurfaceGradient]) -> float:
    """The number of cases behind gradients, each weighted by its most confident gradient."""
    surest: dict[str, float] = {}
    for gradient in gradients:
        if gradient.confidence > surest.get(gradient.case_id, 0.0):
            surest[gradient.case_id] = gradient.confidence
    return round(fsum(surest.values()), 6)


def rank(
    signals: Sequence[AggregateResult], *, min_share: float = 0.25, least: float = 0.0
) -> tuple[tuple[AggregateResult, ...], tuple[AggregateResult, ...]]:
    """Split signals into those to act on and the rest, each sorted by severity, then by support.

    A signal needs a text, at least `min_share` of the largest support, and a support of at least `least`.
    """
    largest = max((signal.support for signal in signals if signal.text), default=0.0)
    needed = max(least, min_share * largest)
    ordered = sorted(signals, key=lambda signal: (signal.severity, -signal.support, signal.surface_id))
    split = group_by(ordered, lambda signal: bool(signal.text) and signal.support >= needed)
    return tuple(split.get(True, ())), tuple(split.get(False, ()))


def _build_merge_key(gradient: SurfaceGradient) -> tuple[str, ...]:
    """Equal for gradients with the same reason: category, kinds and predicates of findings, text without literals."""
    findings = sorted({f"{finding.kind} {finding.predicate}" for finding in gradient.findings})
    return (gradient.category, *findings, _mask_literals(gradient.text))


def _mask_literals(text: str) -> str:
    """Replace quoted literals and numbers in a text, and lists of them, by an ellipsis."""
    plain = " ".join(text.casefold().split())
    if not _MAY_HOLD_LITERALS.search(plain):
        return plain
    return _REPEATED.sub("…", _LITERAL.sub("…", plain))


_MAY_HOLD_LITERALS = re.compile(r"['\"`\d…]")
_LITERAL = re.compile(r"(?<!\w)'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\b\d[\d.,:/-]*")
_REPEATED = re.compile(r"…(?:(?:,| and)? …)+")


def _describe_reasons(reasons: Sequence[SharedReason], request: AggregateRequest) -> str:
    lines = [
        f"{_describe_cases(reason, request)} ({reason.category}): {reason.text}" for reason in reasons[:MOST_REASONS]
    ]
    if len(reasons) > MOST_REASONS:
        lines.append(f"And {len(reasons) - MOST_REASONS} more reasons with less support.")
    return "\n".join(lines)


def _describe_cases(reason: SharedReason, request: AggregateRequest) -> str:
    count = len(reason.case_ids)
    if request.failed_cases:
        return f"{count} of {request.failed_cases} failed cases"
    return "1 case" if count == 1 else f"{count} cases"
