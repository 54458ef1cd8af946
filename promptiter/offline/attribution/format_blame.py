"""Blame for form: on the step that wrote the answer so, not on one that hands on what it gets, as it is told to."""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.offline.attribution.blame_results import Blame, Blames
from promptiter.offline.attribution.fault_localization import spectrum
from promptiter.offline.attribution.format_rules import Form
from promptiter.offline.attribution.trace_context import Scene
from promptiter.offline.attribution.value_search import Value
from promptiter.stages.losses import Severity
from traces import Step

FORM = 0.7


def blame_forms(
    forms: Iterable[Form], blames: Blames, *, last: str, severity: Severity, unobserved: frozenset[str]
) -> None:
    """Blame for the forms of a loss on the step `last`.

    A step that is `unobserved` had wrong things to work with, so what it wrote says little; it is blamed only for a
    form that needs no content, and that its node keeps in no run at all.
    """
    for form in forms:
        step_id, confidence = _maker(blames.scene, form, last=last)
        if step_id in unobserved and not _is_never_kept(blames.scene, form, step_id=step_id):
            continue
        blame = Blame(
            step_id=step_id,
            lead="The output of this step breaks a rule of form",
            what=form.rule,
            category="format",
            confidence=confidence,
            severity=severity,
            finding=form.finding,
        )
        blames.add(blame)


def writer_of(scene: Scene, last: str) -> str:
    """The nearest step at `last` or before it that does not merely copy, and is not told to."""
    for step_id in _copies(scene, last, writing=None):
        step = scene.steps[step_id]
        if scene.blamable(step) and not scene.is_told_to_copy(step.node_id):
            return step_id
    return last


def _maker(scene: Scene, form: Form, *, last: str) -> tuple[str, float]:
    """The step that made a form, and how sure that is.

    It is of the node that first keeps the form in passing runs. Else it is the last step, unless that only copies its
    predecessor and is told to: then the nearest before it that is not told so, or the one that brought the form in.
    """
    if suspect := scene.suspect(form.shape):
        step, score = suspect
        return step.id, FORM * score
    copies = _copies(scene, last, writing=form.writing)
    blamable = [step_id for step_id in copies if scene.blamable(scene.steps[step_id])]
    free = [step_id for step_id in blamable if not scene.is_told_to_copy(scene.steps[step_id].node_id)]
    if free:
        node_id = scene.steps[free[0]].node_id
        return [step_id for step_id in free if scene.steps[step_id].node_id == node_id][-1], FORM  # its first visit
    if not blamable:
        return last, FORM
    first = blamable[-1]
    was_given = form.writing is None or scene.texts.input(first).writes(form.writing)
    return last if was_given else first, FORM


def _copies(scene: Scene, last: str, *, writing: Value | None) -> list[str]:
    """A step, and those before it from each of which the next one copied."""
    copies = [last]
    while source := _copied_from(scene, scene.steps[copies[-1]], writing=writing):
        copies.append(source)
    return copies


def _copied_from(scene: Scene, step: Step, *, writing: Value | None) -> str | None:
    """The predecessor whose whole output, or whose way of writing a value, a step took over."""
    output = scene.texts.output(step.id)
    for source in step.predecessors:
        given = scene.texts.output(source)
        if given.folded.rstrip(" .") == output.folded.rstrip(" .") or (writing is not None and given.writes(writing)):
            return source
    return None


def _is_never_kept(scene: Scene, form: Form, *, step_id: str) -> bool:
    if not form.is_own or form.shape is None:
        return False
    node_id = scene.steps[step_id].node_id
    return all(node_id not in spectrum(form.shape, peer.trace).shown for peer in scene.request.peers)
