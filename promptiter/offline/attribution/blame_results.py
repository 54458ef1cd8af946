"""Collects blame for the steps of one trace and turns it into gradients, packets and BackwardResults.

Several values that blame one surface of one step for the same reason become one gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.expected_values import Mismatch
from promptiter.offline.attribution.trace_context import TraceContext
from promptiter.offline.attribution.traversal import Walk
from promptiter.stages.contracts import BackwardResult, GradientPacket, SurfaceGradient
from promptiter.stages.losses import Category, Severity

MAX_SUBJECTS = 6
"""Maximum number of values named in a gradient's text."""

MAX_CHARACTERS = 120

SETTING_SHARE = 0.2
"""The confidence that a setting of a blamed step is the cause, as a share of that in its text. Nothing shows which of
them it is, and this little is tried once nothing else is left, or the text did not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """One reason to blame a step; `subject` is the value or rule concerned."""

    step_id: str
    reason: str
    subject: str
    category: Category
    confidence: float
    severity: Severity
    finding: Finding | None = None
    tool: str = ""


@dataclass(slots=True)
class _Entry:
    """Blame that becomes one gradient or packet."""

    category: Category
    confidence: float
    severity: Severity
    subjects: dict[str, None] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


class BlameCollector:
    """The blame found in one trace so far."""

    def __init__(self, context: TraceContext) -> None:
        self.context = context
        self.blamed: dict[str, None] = {}
        self._visited: set[str] = set()
        self._entries: dict[tuple[str, str, str], _Entry] = {}
        self._packets: dict[tuple[str, str], _Entry] = {}

    def __bool__(self) -> bool:
        return bool(self.blamed)

    def mark_visited(self, step_ids: Iterable[str]) -> None:
        self._visited.update(step_ids)

    def add(self, blame: Blame) -> None:
        """Blame a step or, if it has no editable surface, the nearest step before it with half the confidence.

        A step that only chose the route to another one cannot change how that one calls its tools.
        """
        context = self.context
        step = context.steps[blame.step_id]
        to_blame = context.find_nearest_editable(step, by_route=blame.category not in ("wrong_tool", "wrong_arguments"))
        self.blamed.setdefault(blame.step_id)
        self._visited.add(blame.step_id)
        if to_blame is None:
            return
        reason, confidence, tool = blame.reason, blame.confidence, blame.tool
        if to_blame is not step:
            reason = f"The following step {step.id!r} has no surface that may change. {reason}"
            confidence, tool = confidence / 2, ""
            self._visited.add(to_blame.id)
        finding = blame.finding
        if to_blame is not step and finding is not None and finding.predicate.startswith("tool"):
            finding = None  # it has no such tool
        is_own = to_blame is step or blame.category == "route"
        surface_id = context.choose_surface(to_blame, blame.category, tool=tool, finding=finding if is_own else None)
        assert surface_id is not None  # it has an editable surface
        settings = (each.id for each in context.editable_surfaces(to_blame) if each.is_setting)
        shares = {**dict.fromkeys(settings, SETTING_SHARE), surface_id: 1.0}
        for blamed, share in shares.items():
            entry = self._entries.setdefault(
                (to_blame.id, blamed, reason), _Entry(blame.category, confidence * share, blame.severity)
            )
            _merge(entry, confidence * share, blame.severity, subject=blame.subject, finding=finding)

    def add_packets(self, walk: Walk, mismatch: Mismatch, *, severity: Severity) -> None:
        """Turn the edges of a walk into packets."""
        self._visited.update(walk.visited)
        subject = describe_value(mismatch.value.text, self.context.field_name(mismatch))
        for edge in walk.edges:
            entry = self._packets.setdefault(edge, _Entry("response", 1.0, severity))
            _merge(entry, 1.0, severity, subject=subject, finding=mismatch.finding)

    def build_results(self) -> list[BackwardResult]:
        """One result for each visited step, in the order of the trace."""
        case = self.context.request.case_loss
        gradients: dict[str, list[SurfaceGradient]] = {}
        for (step_id, surface_id, reason), entry in self._entries.items():
            gradients.setdefault(step_id, []).append(
                SurfaceGradient(
                    surface_id=surface_id,
                    case_id=case.case_id,
                    step_id=step_id,
                    text=f"{reason}: {_join_subjects(entry.subjects)}." if any(entry.subjects) else f"{reason}.",
                    severity=entry.severity,
                    category=entry.category,
                    repeat=case.repeat,
                    turn=case.turn,
                    confidence=round(entry.confidence, 4),
                    findings=tuple(entry.findings),
                )
            )
        packets: dict[str, list[GradientPacket]] = {}
        for (source, target), entry in self._packets.items():
            packets.setdefault(source, []).append(
                GradientPacket(
                    source=source,
                    target=target,
                    text=f"Missing or wrong in the input of step {source!r}: {_join_subjects(entry.subjects)}.",
                    severity=entry.severity,
                    category=entry.category,
                    findings=tuple(entry.findings),
                )
            )
        order = sorted(self._visited, key=self.context.position.__getitem__)
        return [
            BackwardResult(
                step_id=step_id,
                gradients=tuple(gradients.get(step_id, ())),
                packets=tuple(packets.get(step_id, ())),
            )
            for step_id in order
        ]


def describe_value(value: str, field_name: str) -> str:
    """A value in quotes, with its name: `the order id 'A-17'`."""
    quoted = f"{value[:MAX_CHARACTERS]!r}" + ("…" if len(value) > MAX_CHARACTERS else "")
    return f"the {field_name} {quoted}" if field_name else quoted


def _merge(entry: _Entry, confidence: float, severity: Severity, *, subject: str, finding: Finding | None) -> None:
    entry.confidence = max(entry.confidence, confidence)
    entry.severity = min(entry.severity, severity)
    entry.subjects.setdefault(subject)
    if finding is not None and finding not in entry.findings:
        entry.findings.append(finding)


def _join_subjects(subjects: Iterable[str]) -> str:
    named = [subject for subject in subjects if subject]
    more = f" and {len(named) - MAX_SUBJECTS} more" if len(named) > MAX_SUBJECTS else ""
    return ", ".join(named[:MAX_SUBJECTS]) + more
