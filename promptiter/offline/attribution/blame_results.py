"""Blame written down: from what was found at which step to gradients, packets and BackwardResults.

What is said of one surface of one step in one way becomes one gradient, whatever the number of values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.expected_values import Atom
from promptiter.offline.attribution.trace_context import Scene
from promptiter.offline.attribution.traversal import Walk
from promptiter.stages.contracts import BackwardResult, GradientPacket, SurfaceGradient
from promptiter.stages.losses import Category, Severity

MOST_NAMED = 6
"""So many values are named in a gradient's text."""

MOST_CHARACTERS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """One reason to blame a step: `lead` says it in words, `what` is the value or rule concerned."""

    step_id: str
    lead: str
    what: str
    category: Category
    confidence: float
    severity: Severity
    finding: Finding | None = None
    tool: str = ""


@dataclass(slots=True)
class _Entry:
    """The blames that become one gradient."""

    category: Category
    confidence: float
    severity: Severity
    whats: dict[str, None] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


class Blames:
    """What has been found in one trace so far."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.blamed: dict[str, None] = {}
        self._looked_at: set[str] = set()
        self._entries: dict[tuple[str, str, str], _Entry] = {}
        self._packets: dict[tuple[str, str], _Entry] = {}

    def __bool__(self) -> bool:
        return bool(self.blamed)

    def look_at(self, step_ids: Iterable[str]) -> None:
        self._looked_at.update(step_ids)

    def add(self, blame: Blame) -> None:
        """Blame a step, or, if nothing of it may change, the nearest step before it, with half the confidence."""
        scene = self.scene
        step = scene.steps[blame.step_id]
        to_blame = scene.nearest_blamable(step)
        self.blamed.setdefault(blame.step_id)
        self._looked_at.add(blame.step_id)
        if to_blame is None:
            return
        lead, confidence, tool = blame.lead, blame.confidence, blame.tool
        if to_blame is not step:
            lead = f"Nothing may be changed at step {step.id!r}, which follows this one. {lead}"
            confidence, tool = confidence / 2, ""
            self._looked_at.add(to_blame.id)
        surface_id = scene.surface_for(to_blame, blame.category, tool=tool)
        assert surface_id is not None  # it is blamable
        entry = self._entries.setdefault(
            (to_blame.id, surface_id, lead), _Entry(blame.category, confidence, blame.severity)
        )
        _merge(entry, confidence, blame.severity, what=blame.what, finding=blame.finding)

    def send(self, walk: Walk, atom: Atom, *, severity: Severity) -> None:
        """Write down the ways of a walk as packets."""
        self._looked_at.update(walk.looked_at)
        what = named(atom.value.text, self.scene.field(atom))
        for way in walk.ways:
            entry = self._packets.setdefault(way, _Entry("response", 1.0, severity))
            _merge(entry, 1.0, severity, what=what, finding=atom.finding)

    def results(self) -> list[BackwardResult]:
        """One for each step that was looked at, in the order of the trace."""
        case = self.scene.request.case_loss
        gradients: dict[str, list[SurfaceGradient]] = {}
        for (step_id, surface_id, lead), entry in self._entries.items():
            gradients.setdefault(step_id, []).append(
                SurfaceGradient(
                    surface_id=surface_id,
                    case_id=case.case_id,
                    step_id=step_id,
                    text=f"{lead}: {_listed(entry.whats)}." if any(entry.whats) else f"{lead}.",
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
                    text=f"This is missing or wrong in what step {source!r} was given: {_listed(entry.whats)}.",
                    severity=entry.severity,
                    category=entry.category,
                    findings=tuple(entry.findings),
                )
            )
        order = sorted(self._looked_at, key=self.scene.position.__getitem__)
        return [
            BackwardResult(
                step_id=step_id,
                gradients=tuple(gradients.get(step_id, ())),
                packets=tuple(packets.get(step_id, ())),
            )
            for step_id in order
        ]


def named(value: str, field_name: str) -> str:
    """A value in quotes, with what it is called: `the order id 'A-17'`."""
    quoted = f"{value[:MOST_CHARACTERS]!r}" + ("…" if len(value) > MOST_CHARACTERS else "")
    return f"the {field_name} {quoted}" if field_name else quoted


def _merge(entry: _Entry, confidence: float, severity: Severity, *, what: str, finding: Finding | None) -> None:
    entry.confidence = max(entry.confidence, confidence)
    entry.severity = min(entry.severity, severity)
    entry.whats.setdefault(what)
    if finding is not None and finding not in entry.findings:
        entry.findings.append(finding)


def _listed(whats: Iterable[str]) -> str:
    told = [what for what in whats if what]
    more = f" and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    return ", ".join(told[:MOST_NAMED]) + more
