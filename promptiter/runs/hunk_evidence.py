"""HunkEvidence: each passage that a run changed, traced to the gradients, cases and steps behind it, with its effect.

`read_hunks` needs only the result of a run, finished or not. It follows the accepted profile back to the initial one,
so a passage that was changed in several rounds has the evidence of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from promptiter.backprop.record import get_passes
from promptiter.llm.models import estimate_tokens
from promptiter.profile import PatchEvidence, SurfaceChange, SurfacePatch
from promptiter.runlog.results import RoundResult, RunResult
from promptiter.runs.lineage import FoundGradient, Lineage
from promptiter.runs.measured_effect import MeasuredEffect, measure_candidate, measure_surface
from promptiter.runs.text_history import Origin, TextHistory
from promptiter.stages.contracts import BlameVerdict
from promptiter.stages.losses import Category, Severity
from promptiter.value_text import describe_value
from promptiter.wording import join_sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientEvidence:
    """A gradient behind a hunk: what it says, and where it was found: the step of a trace of a case.

    `trace_digest` names the stored trace, if there is one; `check` is the verdict of the gradient check.
    """

    id: str
    surface_id: str
    text: str
    severity: Severity
    category: Category
    round: int
    case_id: str
    repeat: int
    turn: int
    step_id: str
    node_id: str
    trace_digest: str = ""
    check: BlameVerdict = "unchecked"

    @property
    def anchor(self) -> str:
        return make_anchor("gradient", self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """A step behind a hunk, by its case and its id in the trace."""

    case_id: str
    step_id: str

    @property
    def anchor(self) -> str:
        return make_anchor("step", self.case_id, self.step_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class HunkEvidence:
    """One changed passage of a surface: why it was changed, by which rounds, and what was measured.

    `whole_surface`: the record does not say which evidence is for this hunk, so it has that of all hunks of the
    surface, if there is any. A reviewer wrote a hunk that `is_reviewed`. `effects` say what they were measured for:
    seldom one hunk alone. The tokens are estimates.
    """

    surface_id: str
    number: int
    before: str
    after: str
    rounds: tuple[int, ...] = ()
    reason: str = ""
    gradients: tuple[GradientEvidence, ...] = ()
    cases: tuple[str, ...] = ()
    steps: tuple[StepEvidence, ...] = ()
    effects: tuple[MeasuredEffect, ...] = ()
    tokens_before: int = 0
    tokens_after: int = 0
    whole_surface: bool = False
    is_reviewed: bool = False

    @property
    def anchor(self) -> str:
        return make_anchor("hunk", self.surface_id, str(self.number))


def make_anchor(kind: str, *names: str) -> str:
    """An id for an HTML element that also works after a `#`; different names have different ids."""
    escaped = (re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_", name) for name in names)
    return "-".join((kind, *escaped))


def read_hunks(result: RunResult) -> dict[str, tuple[HunkEvidence, ...]]:
    """The hunks of each surface that the adopted profile changes, or else the profile that was accepted so far."""
    found = result.changes or result.initial_profile.changes(result.working_profile, result.structure)
    changed = {each.surface_id: each for each in found}
    if not changed:
        return {}
    lineage = Lineage(result)
    histories = {name: TextHistory(each.before) for name, each in changed.items() if isinstance(each.before, str)}
    whole: dict[str, list[Origin]] = {name: [] for name in changed}
    effects = []
    for number, change in enumerate(lineage.changes()):
        hunks = 0
        for patch in change.candidate.patches:
            history = histories.get(patch.surface_id)
            is_text = history is not None and isinstance(patch.value, str)
            hunks += history.apply(_add_edits(patch, change.round), change=number) if history and is_text else 1
            if patch.surface_id in whole:
                edit = None if is_text else next(iter(patch.edits), None)
                whole[patch.surface_id].append(Origin(change=number, patch=patch, edit=edit))
        effects.append(measure_candidate(change, hunks=hunks))
    passages = {name: _list_passages(change, histories.get(name), whole[name]) for name, change in changed.items()}
    origins = (origin for found in passages.values() for _, _, some in found for origin in some)
    gradients = lineage.find_gradients(name for origin in origins for name in origin.evidence.gradients)
    builder = _HunkBuilder(result, gradients, tuple(effects))
    return {
        name: tuple(builder.build(name, number, *each) for number, each in enumerate(found, start=1))
        for name, found in passages.items()
    }


_Passage: TypeAlias = tuple[str, str, tuple[Origin, ...]]


def _list_passages(change: SurfaceChange, history: TextHistory | None, whole: Sequence[Origin]) -> list[_Passage]:
    """The hunks of a surface, each with its origins: of those that cannot be traced, all of the surface.

    The change of a value that is not a text is one hunk.
    """
    found = [] if history is None else list(history.hunks())
    unknown = tuple(replace(origin, is_whole=len(found) > 1) for origin in whole)
    if not found:
        return [(describe_value(change.before), describe_value(change.after), unknown)]
    return [(hunk.before, hunk.after, origins or unknown) for hunk, origins in found]


class _HunkBuilder:
    def __init__(
        self, result: RunResult, gradients: Mapping[str, FoundGradient], effects: Sequence[MeasuredEffect]
    ) -> None:
        self._result = result
        self._gradients = gradients
        self._effects = effects

    def build(self, surface_id: str, number: int, before: str, after: str, origins: tuple[Origin, ...]) -> HunkEvidence:
        own = [each for each in origins if not each.is_whole]
        used = own or origins
        effects = [self._effects[number] for number in sorted({each.change for each in origins})]
        names = dict.fromkeys(name for each in used for name in each.evidence.gradients)
        gradients = [self._build_gradient(self._gradients[name]) for name in names if name in self._gradients]
        of_surface = measure_surface(self._result, surface_id)
        return HunkEvidence(
            surface_id=surface_id,
            number=number,
            before=before,
            after=after,
            rounds=tuple(dict.fromkeys(each.round for each in effects if each.round is not None)),
            reason=join_sentences(dict.fromkeys(each.reason for each in used if each.reason)),
            gradients=tuple(gradients),
            cases=tuple(dict.fromkeys(case_id for each in used for case_id in each.evidence.cases)),
            steps=tuple(_list_steps(used, gradients)),
            effects=(*effects, *([of_surface] if of_surface else [])),
            tokens_before=round(estimate_tokens(before)),
            tokens_after=round(estimate_tokens(after)),
            whole_surface=not any(each.is_reviewed or each.evidence != PatchEvidence() for each in own),
            is_reviewed=any(each.is_reviewed for each in used),
        )

    def _build_gradient(self, found: FoundGradient) -> GradientEvidence:
        gradient = found.gradient
        return GradientEvidence(
            id=gradient.id,
            surface_id=gradient.surface_id,
            text=gradient.text,
            severity=gradient.severity,
            category=gradient.category,
            round=found.round,
            case_id=gradient.case_id,
            repeat=gradient.repeat,
            turn=gradient.turn,
            step_id=gradient.step_id,
            node_id=self._result.structure.surface(gradient.surface_id).node_id,
            trace_digest=found.trace_digest,
            check=gradient.check,
        )


def _list_steps(origins: Iterable[Origin], gradients: Iterable[GradientEvidence]) -> list[StepEvidence]:
    """The steps of gradients; those of a patch without gradients are `case/step`, and both may contain a slash."""
    found = dict.fromkeys(StepEvidence(case_id=each.case_id, step_id=each.step_id) for each in gradients)
    for each in (origin.evidence for origin in origins):
        for name in () if each.gradients else each.steps:
            cases = [case_id for case_id in each.cases if name.startswith(f"{case_id}/")]
            case_id = max(cases, key=len, default=name.partition("/")[0])
            found[StepEvidence(case_id=case_id, step_id=name[len(case_id) + 1 :])] = None
    return list(found)


def _add_edits(patch: SurfacePatch, each: RoundResult) -> SurfacePatch:
    """A patch that was composed of those of several passes has no edits if one of them has none: take the others."""
    if patch.edits:
        return patch
    parts = (part for one in get_passes(each) for part in one.patches if part.surface_id == patch.surface_id)
    return replace(patch, edits=tuple(edit for part in parts for edit in part.edits))
