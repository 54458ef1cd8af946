"""The cases behind the changes of a run: what was asked and what failed, the blamed steps, and the gradients there.

The hunks of a report link to these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from promptiter.backprop.record import get_passes
from promptiter.grouping import group_by
from promptiter.runlog.results import RoundResult
from promptiter.runs.hunk_evidence import GradientEvidence, HunkEvidence, StepEvidence, make_anchor
from promptiter.stages.losses import CaseLoss
from promptiter.wording import plural
from traces import ExecutionTrace
from traces.text import cut_at_word, preview

MOST_CASES = 8
"""Cases of one hunk whose evidence is shown; the others are only counted."""

MAX_VALUE = 2_000
"""Characters of an input or output that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceStep:
    """A blamed step and the gradients found there. Without its trace, input and output are empty."""

    case_id: str
    step_id: str
    node_id: str
    gradients: tuple[GradientEvidence, ...]
    input: str = ""
    output: str = ""
    error: str = ""

    @property
    def anchor(self) -> str:
        return StepEvidence(case_id=self.case_id, step_id=self.step_id).anchor


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceCase:
    """A case that failed: what the user said, what was expected, what was wrong, and the steps that were blamed."""

    case_id: str
    input: str
    expected: str
    losses: tuple[str, ...]
    steps: tuple[EvidenceStep, ...]
    note: str = ""

    @property
    def anchor(self) -> str:
        return make_anchor("case", self.case_id)


def choose_gradients(hunk: HunkEvidence) -> tuple[GradientEvidence, ...]:
    """The gradients of a hunk that are shown: those of its first cases, the worst first."""
    by_case = group_by(sorted(hunk.gradients, key=lambda each: each.severity), lambda each: each.case_id)
    return tuple(gradient for found in list(by_case.values())[:MOST_CASES] for gradient in found)


def collect_evidence(
    hunks: Iterable[HunkEvidence],
    rounds: Iterable[RoundResult],
    read_trace: Callable[[str], ExecutionTrace | None],
) -> tuple[EvidenceCase, ...]:
    """The cases of all gradients that are shown, in the order of the hunks."""
    shown = {each.id: each for hunk in hunks for each in choose_gradients(hunk)}
    by_case = group_by(shown.values(), lambda each: each.case_id)
    losses = _find_losses(rounds, {(each.case_id, each.trace_digest) for each in shown.values()})
    return tuple(_describe_case(case_id, gradients, losses, read_trace) for case_id, gradients in by_case.items())


def _find_losses(rounds: Iterable[RoundResult], wanted: set[tuple[str, str]]) -> dict[tuple[str, str], CaseLoss]:
    """The losses of some traces, by case and trace."""
    found = {}
    for each in rounds if wanted else ():
        for one in get_passes(each):
            for loss in one.losses:
                if (loss.case_id, loss.trace_digest) in wanted:
                    found[loss.case_id, loss.trace_digest] = loss
    return found


def _describe_case(
    case_id: str,
    gradients: list[GradientEvidence],
    losses: dict[tuple[str, str], CaseLoss],
    read_trace: Callable[[str], ExecutionTrace | None],
) -> EvidenceCase:
    steps, known, is_kept = [], [], True
    for trace_digest, of_trace in group_by(gradients, lambda each: each.trace_digest).items():
        loss = losses.get((case_id, trace_digest))
        known += [] if loss is None else [loss]
        trace = read_trace(trace_digest) if trace_digest else None
        is_kept = is_kept and trace is not None
        for step_id, found in group_by(of_trace, lambda each: each.step_id).items():
            steps.append(_describe_step(step_id, found, trace))
    return EvidenceCase(
        case_id=case_id,
        input=cut_at_word(known[0].input, MAX_VALUE) if known else "",
        expected=next((each.expected for loss in known for each in loss.losses if each.expected), ""),
        losses=tuple(dict.fromkeys(each.report for loss in known for each in loss.losses)),
        steps=tuple(steps),
        note="" if is_kept else f"the trace of {plural(len(steps), 'step')} was not kept",
    )


def _describe_step(step_id: str, gradients: list[GradientEvidence], trace: ExecutionTrace | None) -> EvidenceStep:
    found = next((step for step in trace.steps if step.id == step_id), None) if trace is not None else None
    first = gradients[0]
    if found is None:
        return EvidenceStep(case_id=first.case_id, step_id=step_id, node_id=first.node_id, gradients=tuple(gradients))
    return EvidenceStep(
        case_id=first.case_id,
        step_id=step_id,
        node_id=found.node_id,
        gradients=tuple(gradients),
        input=preview(found.input, MAX_VALUE),
        output=preview(found.output, MAX_VALUE),
        error="" if found.error is None else str(found.error),
    )
