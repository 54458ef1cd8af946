"""The cases behind the changes of a run: what was asked and what failed, the blamed steps, and the gradients there.

The hunks of a report link to these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from promptiter.backprop.record import get_passes
from promptiter.grouping import group_by
from promptiter.runlog.results import RoundResult
from promptiter.runs.hunk_evidence import GradientEvidence, HunkEvidence, StepEvidence, make_anchor
from promptiter.runs.report.blame_diagram import find_loss
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
    """A blamed step and the gradients found there. Without its trace, input and output are empty.

    `visit` counts the steps of this name in several traces of the case.
    """

    case_id: str
    step_id: str
    node_id: str
    gradients: tuple[GradientEvidence, ...]
    visit: int = 1
    input: str = ""
    output: str = ""
    error: str = ""

    @property
    def anchor(self) -> str:
        first = StepEvidence(case_id=self.case_id, step_id=self.step_id).anchor
        return first if self.visit == 1 else f"{first}-{self.visit}"

    @property
    def place(self) -> str:
        """Where it was: its node, the round, and the turn of a conversation."""
        found = self.gradients[0]
        return f"node {self.node_id}, round {found.round}" + (f", turn {found.turn + 1}" if found.turn else "")


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
    losses = _find_losses(rounds, shown.values())
    return tuple(_describe_case(case_id, gradients, losses, read_trace) for case_id, gradients in by_case.items())


def _find_losses(rounds: Iterable[RoundResult], gradients: Collection[GradientEvidence]) -> dict[str, CaseLoss]:
    """The losses behind some gradients, by the ids of these: of the same trace, or else of a later turn of its run."""
    wanted = group_by(gradients, lambda each: (each.round, each.case_id, each.repeat))
    found: dict[str, CaseLoss] = {}
    for each in rounds if wanted else ():
        losses = group_by(
            (loss for one in get_passes(each) for loss in one.losses), lambda loss: (loss.case_id, loss.repeat)
        )
        for run, of_run in losses.items():
            by_trace = {loss.trace_digest: loss for loss in of_run}
            for gradient in wanted.get((each.round, *run), ()):
                loss = by_trace.get(gradient.trace_digest) or find_loss(of_run, gradient.turn)
                found |= {} if loss is None else {gradient.id: loss}
    return found


def _describe_case(
    case_id: str,
    gradients: list[GradientEvidence],
    losses: dict[str, CaseLoss],
    read_trace: Callable[[str], ExecutionTrace | None],
) -> EvidenceCase:
    steps, visits, is_kept = [], Counter[str](), True
    for trace_digest, of_trace in group_by(gradients, lambda each: each.trace_digest).items():
        trace = read_trace(trace_digest) if trace_digest else None
        is_kept = is_kept and trace is not None
        for step_id, found in group_by(of_trace, lambda each: each.step_id).items():
            visits[step_id] += 1
            steps.append(replace(_describe_step(step_id, found, trace), visit=visits[step_id]))
    known = [losses[each.id] for each in gradients if each.id in losses]
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
