"""Blame for format: on the step that produced the format, not on one that is instructed to copy its input."""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.offline.attribution.blame_results import Blame, BlameCollector
from promptiter.offline.attribution.fault_localization import compute_spectrum
from promptiter.offline.attribution.format_rules import FormatRule
from promptiter.offline.attribution.trace_context import TraceContext
from promptiter.offline.attribution.value_search import Value
from promptiter.stages.losses import Severity
from traces import Step

CONFIDENCE = 0.7


def blame_format(
    rules: Iterable[FormatRule],
    collector: BlameCollector,
    *,
    last: str,
    severity: Severity,
    unobserved: frozenset[str],
) -> None:
    """Blame steps for the format rules broken by a loss on the step `last`.

    An `unobserved` step had a wrong input, so its output says little. It is blamed only for a rule that needs no
    content and that its node follows in no run at all.
    """
    for rule in rules:
        step_id, confidence = _find_responsible_step(collector.context, rule, last=last)
        if step_id in unobserved and not _is_never_followed(collector.context, rule, step_id=step_id):
            continue
        blame = Blame(
            step_id=step_id,
            reason="The output of this step breaks a format rule",
            subject=rule.text,
            category="format",
            confidence=confidence,
            severity=severity,
            finding=rule.finding,
        )
        collector.add(blame)


def find_writer(context: TraceContext, last: str) -> str:
    """The nearest step at or before `last` that writes its output rather than copying it."""
    for step_id in _follow_copies(context, last, written=None):
        step = context.steps[step_id]
        if context.editable_surfaces(step) and not context.must_copy(step.node_id):
            return step_id
    return last


def _find_responsible_step(context: TraceContext, rule: FormatRule, *, last: str) -> tuple[str, float]:
    """The step responsible for a format, with the confidence in that.

    It is a step of the node that introduces the format in passing runs. Otherwise it is the last step, unless that
    step is instructed to copy and only copies a step that it read: then it is the nearest step before it that is not
    instructed to copy, or the one that introduced the wrong format.
    """
    if suspect := context.find_suspect(rule.pattern):
        step, score = suspect
        return step.id, CONFIDENCE * score
    copies = _follow_copies(context, last, written=rule.written)
    editable = [step_id for step_id in copies if context.editable_surfaces(context.steps[step_id])]
    free = [step_id for step_id in editable if not context.must_copy(context.steps[step_id].node_id)]
    if free:
        node_id = context.steps[free[0]].node_id
        first_visit = [step_id for step_id in free if context.steps[step_id].node_id == node_id][-1]
        return first_visit, CONFIDENCE
    if not editable:
        return last, CONFIDENCE
    first = editable[-1]
    is_received = rule.written is None or context.texts.input(first).contains_verbatim(rule.written)
    return last if is_received else first, CONFIDENCE


def _follow_copies(context: TraceContext, last: str, *, written: Value | None) -> list[str]:
    """A step and the steps before it, each copied by the next."""
    copies = [last]
    while source := _find_copied_source(context, context.steps[copies[-1]], written=written):
        copies.append(source)
    return copies


def _find_copied_source(context: TraceContext, step: Step, *, written: Value | None) -> str | None:
    """The step that was read and whose whole output, or whose way of writing a value, the step copied."""
    output = context.texts.output(step.id)
    for source in step.sources:
        given = context.texts.output(source)
        is_copied = given.normalized.rstrip(" .") == output.normalized.rstrip(" .")
        if is_copied or (written is not None and given.contains_verbatim(written)):
            return source
    return None


def _is_never_followed(context: TraceContext, rule: FormatRule, *, step_id: str) -> bool:
    if not rule.needs_no_content or rule.pattern is None:
        return False
    node_id = context.steps[step_id].node_id
    return all(node_id not in compute_spectrum(rule.pattern, peer.trace).matching for peer in context.request.peers)
