"""Loss extraction: failed scores become losses on the steps of a trace. The backward pass starts here.

A loss is placed on every terminal step of its turn's trace, or on the last visit of the node that a LossPlacement
names; a LossHint adds what the user knows about a case. Its severity follows from the gap to the threshold. A run that
failed with an error has one loss, on the failed step, unless no prompt could have prevented the error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from promptiter.backprop.step_text import render_answer
from promptiter.errors import BudgetEndedError, SetupError, TransientModelError, nearest
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.metrics.judge_prompts import render_conversation
from promptiter.evaluation.metrics.metric import summarize_findings
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Finding, Score
from promptiter.evaluation.trace_store import ReadTrace
from promptiter.grouping import group_by
from promptiter.llm.messages import Message
from promptiter.outages import is_outage_name
from promptiter.stages.losses import (
    CaseLoss,
    Category,
    Loss,
    LossHint,
    LossPlacement,
    Severity,
    check_hints,
    check_placements,
)
from traces import ExecutionTrace, Failure

GAPS: tuple[tuple[float, Severity], ...] = ((1.0, "P0"), (0.5, "P1"), (0.2, "P2"))
"""The severity by the missing share of the threshold: all of it, at least half, at least a fifth; less is P3."""

MOST_SPLIT = 12
"""Maximum number of parts of one loss; the last of them lists the other findings."""

UPSTREAM_FIRST: tuple[Category, ...] = ("wrong_tool", "wrong_arguments", "format", "response", "other")
"""The order of categories when findings tie: what happens earlier in a run explains what happens later."""


async def extract_losses(
    evaluation: Evaluation,
    eval_set: EvalSet,
    read_trace: ReadTrace,
    *,
    placements: Sequence[LossPlacement] = (),
    hints: Sequence[LossHint] = (),
) -> tuple[CaseLoss, ...]:
    """Return the losses of all failed runs of failed cases, in the order of rows and turns.

    A case fails by its score over all repeats. `read_trace` is called once for each turn up to the last failed one.
    Raises SetupError if a placement or hint names something that the evaluation lacks. Node ids of placements are
    checked by the caller, who has the structure.
    """
    cases = {case.id: case for case in eval_set.cases}
    metrics = evaluation.thresholds
    if problems := [
        *check_placements(placements, metrics=metrics),
        *check_hints(hints, metrics=metrics, case_ids=cases),
    ]:
        raise SetupError(problems[0])
    extraction = _Extraction(read_trace, criteria=evaluation.criteria, placements=placements, hints=hints)
    passed = {case.case_id for case in evaluation.cases if case.passed}
    losses: list[CaseLoss] = []
    for row in evaluation.rows:
        if row.case_id in passed:
            continue
        if row.case_id not in cases:
            near = nearest(row.case_id, cases)
            raise SetupError(f"eval set {eval_set.id!r} has no case {row.case_id!r}{near}; pass the set that was run")
        losses += await extraction.extract_from_row(row, cases[row.case_id])
    return tuple(losses)


def split_losses(losses: Iterable[Loss]) -> tuple[Loss, ...]:
    """One loss for each finding, and one for what else the text says: the words of a judge or a function, or a hint.

    A text with a single finding is one loss. It ends with the finding, unless it mentions it or the finding only
    repeats the expected answer.
    """
    known: dict[str, tuple[Loss, list[Loss]]] = {}
    split: list[Loss] = []
    for loss in losses:
        first, parts = known.get(loss.text, (None, []))
        if first is not None and replace(first, step_id=loss.step_id) == loss:  # most differ only in their steps
            split += [replace(part, step_id=loss.step_id) for part in parts]
        else:
            parts = list(_split_loss(loss))
            known[loss.text] = loss, parts
            split += parts
    return tuple(split)


def _split_loss(loss: Loss) -> Iterator[Loss]:
    listed = summarize_findings(loss.findings)
    if len(loss.findings) < 2 and not (loss.findings and loss.text.startswith(listed)):
        is_told = all(finding.expected == loss.expected for finding in loss.findings) or listed in loss.text
        yield loss if is_told else replace(loss, text=f"{loss.text}\n{listed}")
        return
    several, rest = loss.findings[: MOST_SPLIT - 1], loss.findings[MOST_SPLIT - 1 :]
    for findings in (*((each,) for each in several), *([rest] if rest else [])):
        text = summarize_findings(findings)
        yield replace(loss, text=text, findings=findings, category=category_of(findings))
    if remark := _find_remark(loss):
        yield replace(loss, text=remark, findings=())


def _find_remark(loss: Loss) -> str:
    """The lines of the text of a loss that do more than list its findings."""
    described = sorted({summarize_findings([each]) for each in loss.findings}, key=len, reverse=True)
    listed = re.compile("|".join([*map(re.escape, described), r"and \d+ more"]))
    lines = loss.text.removeprefix(summarize_findings(loss.findings)).splitlines()
    return "\n".join(line for line in lines if re.search(r"\w", listed.sub("", line))).strip()


def severity_of(score: Score) -> Severity:
    """The severity of a failed score, by the missing share of its threshold (see GAPS)."""
    if score.value is None:
        raise ValueError(f"{score.metric!r} is unscored, so it has no gap")
    missing = (score.threshold - score.value) / abs(score.threshold) if score.threshold else 1.0
    missing = round(missing, 9)  # 1 - 0.8 is a fifth, but not in binary floating point
    return next((severity for gap, severity in GAPS if missing >= gap), "P3")


def category_of(findings: Sequence[Finding]) -> Category:
    """The category of most findings; on a tie the first in UPSTREAM_FIRST. Without findings it is `response`."""
    if not findings:
        return "response"
    counts = Counter(_categorize(finding) for finding in findings)
    return max(UPSTREAM_FIRST, key=lambda category: counts[category])


def can_be_blamed(row: CaseRow) -> bool:
    """Whether a case run failed in a way that surfaces can be blamed for: by a score, or by an error of the agent."""
    if row.error is not None:
        return is_fixable_by_prompt(row.error)
    return any(score.is_scored and not score.passed for score in row.scores)


def is_fixable_by_prompt(failure: Failure) -> bool:
    """Whether another prompt could have prevented a failure: not an outage, a timeout or a cancelled call."""
    is_outage = failure.is_outage or is_outage_name(failure.type)
    return not is_outage and _strip_module(failure) not in _BEYOND_PROMPTS


_BEYOND_PROMPTS = frozenset(
    (*(kind.__name__ for kind in (TransientModelError, BudgetEndedError, TimeoutError)), "cancelled", "CancelledError")
)


class _Extraction:
    """Extracts losses from rows, with placements indexed by metric and hints by case and metric."""

    def __init__(
        self,
        read_trace: ReadTrace,
        *,
        criteria: Mapping[str, str],
        placements: Iterable[LossPlacement],
        hints: Iterable[LossHint],
    ) -> None:
        self.read_trace = read_trace
        self.criteria = criteria
        self.placements_of = group_by(placements, lambda placement: placement.metric)
        self.hints_of = group_by(hints, lambda hint: (hint.case_id, hint.metric))

    async def extract_from_row(self, row: CaseRow, case: EvalCase) -> list[CaseLoss]:
        if row.error is not None:
            return await self._extract_from_error(row, case, row.error)
        failed = _group_failed_by_turn(row)
        last = max((turn for turn in failed if turn < len(row.trace_digests)), default=-1)
        losses = []
        traces: list[ExecutionTrace] = []
        for turn, trace_digest in enumerate(row.trace_digests[: last + 1]):
            traces.append(await self.read_trace(trace_digest))
            if turn in failed:
                terminals = [step.id for step in traces[-1].terminals]
                placed = [
                    (
                        self._build_loss(case, score, findings, turn=turn),
                        self._find_placed_steps(score.metric, traces[-1]) or terminals,
                    )
                    for score, findings in failed[turn]
                ]
                losses.append(_build_case_loss(row, case, traces, placed=placed))
        return losses

    async def _extract_from_error(self, row: CaseRow, case: EvalCase, error: Failure) -> list[CaseLoss]:
        if not row.trace_digests or not is_fixable_by_prompt(error):
            return []
        traces = [await self.read_trace(each) for each in row.trace_digests]
        trace = traces[-1]
        if trace.status == "completed" and len(traces) != len(case.turns):
            return []  # the next turn or the simulated user failed, and neither has a trace
        loss = Loss(metric="", step_id="", severity="P0", category="error", text=error.text)
        steps = _find_failed_step(trace, error) or [step.id for step in trace.terminals]
        return [_build_case_loss(row, case, traces, placed=[(loss, steps)])]

    def _build_loss(self, case: EvalCase, score: Score, findings: tuple[Finding, ...], *, turn: int) -> Loss:
        hints = self.hints_of.get((case.id, score.metric), ())
        [reason] = score.turn_reasons[turn : turn + 1] or [score.reason]
        if not reason:
            value = f"{score.metric} is {score.value}, its threshold is {score.threshold}"
            reason = summarize_findings(findings) if findings else value
        return Loss(
            metric=score.metric,
            step_id="",
            severity=min((hint.severity for hint in hints if hint.severity), default=severity_of(score)),
            category=category_of(findings),
            criterion=self.criteria.get(score.metric, ""),
            text="\n".join([reason, *(hint.text for hint in hints if hint.text)]),
            score=score.value,
            findings=findings,
        )

    def _find_placed_steps(self, metric: str, trace: ExecutionTrace) -> tuple[str, ...]:
        """The last visit of each node that a placement names for the metric; empty if none of them ran."""
        node_ids = {placement.node_id for placement in self.placements_of.get(metric, ())}
        if not node_ids:
            return ()
        return tuple({step.node_id: step.id for step in trace.steps if step.node_id in node_ids}.values())


def _group_failed_by_turn(row: CaseRow) -> dict[int, list[tuple[Score, tuple[Finding, ...]]]]:
    """The failed scores of each turn with its findings; a score without findings belongs to the last turn.

    An unscored metric gives no loss: the judge failed, not the agent.
    """
    last = len(row.trace_digests) - 1
    failed: dict[int, list[tuple[Score, tuple[Finding, ...]]]] = {}
    for score in row.scores:
        if not score.is_scored or score.passed:
            continue
        for turn in sorted({finding.turn for finding in score.findings}) or [last]:
            findings = tuple(finding for finding in score.findings if finding.turn == turn)
            failed.setdefault(turn, []).append((score, findings))
    return failed


def _build_case_loss(
    row: CaseRow, case: EvalCase, traces: Sequence[ExecutionTrace], *, placed: Iterable[tuple[Loss, Sequence[str]]]
) -> CaseLoss:
    """The losses of the last of these turns."""
    turn = len(traces) - 1
    asked = case.find_turn(turn)
    expected = asked.expected if asked is not None else None
    return CaseLoss(
        case_id=case.id,
        repeat=row.repeat,
        turn=turn,
        input=_find_question(case, turn, traces[-1]),
        earlier=render_earlier(case, traces[:-1]),
        trace_digest=row.trace_digests[turn],
        losses=tuple(
            replace(loss, step_id=step_id, expected=expected) for loss, step_ids in placed for step_id in step_ids
        ),
    )


def render_earlier(case: EvalCase, traces: Sequence[ExecutionTrace]) -> str:
    """The conversation that a case begins with, and these first turns of it."""
    earlier = list(case.context)
    for number, trace in enumerate(traces):
        question = Message("user", _find_question(case, number, trace))
        earlier += [question, Message("assistant", render_answer(trace))]
    return render_conversation(earlier)


def _find_question(case: EvalCase, turn: int, trace: ExecutionTrace) -> str:
    question = case.find_question(turn)
    return (trace.steps[0].input.text or "") if question is None else question  # a simulated user has no script


def _find_failed_step(trace: ExecutionTrace, error: Failure) -> tuple[str, ...]:
    """The first failed step, preferably one with the run's own error, that a prompt could have prevented.

    First means the order of the trace, not of time: the choice between two parallel branches never varies. In a
    completed run every failed step was handled.
    """
    failed = [
        (step.id, step.error) for step in trace.steps if step.error is not None and is_fixable_by_prompt(step.error)
    ]
    if not failed or trace.status == "completed":
        return ()

    def compare(failure: Failure) -> tuple[bool, bool]:
        return _strip_module(failure) == _strip_module(error), failure.message == error.message

    step_id, _ = max(failed, key=lambda pair: compare(pair[1]))  # max keeps the first of equals
    return (step_id,)


def _strip_module(failure: Failure) -> str:
    """The type of a failure without its module: steps record it with the module, runs without."""
    return failure.type.rpartition(".")[2]


def _categorize(finding: Finding) -> Category:
    if finding.predicate == "json":
        return _categorize_json(finding)
    if finding.predicate == "json_schema" and finding.where.startswith("tool call"):
        return "wrong_arguments" if ", arguments " in finding.where else "other"
    if finding.predicate in _BY_PREDICATE:
        return _BY_PREDICATE[finding.predicate]
    is_content = finding.kind != "violated" or finding.predicate.startswith("rubric:")
    return "response" if is_content else "other"


_BY_PREDICATE: Mapping[str, Category] = {
    "tool_call": "wrong_tool",
    "tool_name": "wrong_tool",
    "tool_order": "wrong_tool",
    "tool_arguments": "wrong_arguments",
    "tool_result": "other",
    "turn": "other",
    "regex": "format",
    "min_length": "format",
    "max_length": "format",
    "only_number": "format",
    "valid_json": "format",
    "json_schema": "format",
}


def _categorize_json(finding: Finding) -> Category:
    """A missing or extra key, or a value of another type, is a format error; everything else is content."""
    if finding.kind != "wrong":
        return "response" if _ITEM.search(finding.where) else "format"
    types = {type(finding.expected), type(finding.actual)}
    is_other_type = len(types) == 2 and types != {int, float} and type(None) not in types
    return "format" if is_other_type else "response"


_ITEM = re.compile(r"\[\d+\]$")
