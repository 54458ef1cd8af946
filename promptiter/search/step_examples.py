"""What the stages are shown of an evaluation: runs of other cases to compare with, and what a node did in each case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Finding
from promptiter.stages.contracts import Peer, StepExample, SurfaceGradient
from traces import ExecutionTrace, Step
from traces.model import Snapshot

MOST_PEERS = 20
"""So many passing and so many failing runs are compared with."""

MOST_EXAMPLES = 40
"""So many failing and so many passing examples an optimizer is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs of one evaluation with their cases; traces are read when they are needed."""

    rows: tuple[CaseRow, ...]
    cases: Mapping[str, EvalCase]
    trace_of: Callable[[str], ExecutionTrace]

    @staticmethod
    def of(evaluation: Evaluation, eval_set: EvalSet, trace_of: Callable[[str], ExecutionTrace]) -> Runs:
        return Runs(rows=evaluation.rows, cases={case.id: case for case in eval_set.cases}, trace_of=trace_of)

    def peers(self) -> tuple[Peer, ...]:
        """Some passing and some failing runs, the same ones each time."""
        chosen = [*self._first(MOST_PEERS, passed=True), *self._first(MOST_PEERS, passed=False)]
        return tuple(
            Peer(
                case_id=row.case_id,
                trace=self.trace_of(row.trace_digests[-1]),
                passed=_passed(row),
                expected=_expected(self.cases[row.case_id], len(row.trace_digests) - 1),
            )
            for row in chosen
        )

    def passing(self, gradients: Sequence[SurfaceGradient]) -> tuple[StepExample, ...]:
        """What the nodes that gradients blame did in runs that passed: the last visit in each."""
        blamed = {self._node_of(gradient) for gradient in gradients[:MOST_EXAMPLES]}
        examples = []
        for row in self._first(MOST_EXAMPLES, passed=True):
            turn = len(row.trace_digests) - 1
            trace = self.trace_of(row.trace_digests[-1])
            visits = [step for step in trace.steps if step.node_id in blamed]
            if visits:
                examples.append(self._example(row, trace, visits[-1], turn=turn, passed=True))
        return tuple(examples)

    def failing(self, gradients: Sequence[SurfaceGradient]) -> tuple[StepExample, ...]:
        """The steps that gradients blame, with what they are blamed for; one example a step."""
        blamed: dict[tuple[str, int, int, str], list[Finding]] = {}
        for gradient in gradients:
            place = (gradient.case_id, gradient.repeat, gradient.turn, gradient.step_id)
            blamed.setdefault(place, []).extend(gradient.findings)
        rows = {(row.case_id, row.repeat): row for row in self.rows}
        examples = []
        for (case_id, repeat, turn, step_id), findings in list(blamed.items())[:MOST_EXAMPLES]:
            row = rows[case_id, repeat]
            trace = self.trace_of(row.trace_digests[turn])
            step = next(step for step in trace.steps if step.id == step_id)
            examples.append(self._example(row, trace, step, turn=turn, passed=False, findings=findings))
        return tuple(examples)

    def _node_of(self, gradient: SurfaceGradient) -> str:
        row = next(row for row in self.rows if (row.case_id, row.repeat) == (gradient.case_id, gradient.repeat))
        trace = self.trace_of(row.trace_digests[gradient.turn])
        return next(step.node_id for step in trace.steps if step.id == gradient.step_id)

    def _first(self, count: int, *, passed: bool) -> list[CaseRow]:
        return [row for row in self.rows if row.trace_digests and _passed(row) is passed][:count]

    def _example(
        self,
        row: CaseRow,
        trace: ExecutionTrace,
        step: Step,
        *,
        turn: int,
        passed: bool,
        findings: Iterable[Finding] = (),
    ) -> StepExample:
        case = self.cases[row.case_id]
        asked = case.turns[turn] if turn < len(case.turns) else None
        expected_calls = asked.expected_tool_calls if asked is not None else None
        return StepExample(
            case_id=row.case_id,
            step_id=step.id,
            input=as_text(step.input),
            output=as_text(step.output),
            passed=passed,
            expected=_expected(case, turn),
            case_input=asked.user if asked is not None else "",
            is_terminal=_wrote_the_answer(step, trace),
            tool_calls=tuple(
                {"name": call.name, "arguments": call.arguments, "result": call.result} for call in step.tool_calls
            ),
            findings=_distinct(findings),
            expected_tool_calls=None
            if expected_calls is None
            else tuple({"name": call.name, "arguments": call.arguments} for call in expected_calls),
        )


def _wrote_the_answer(step: Step, trace: ExecutionTrace) -> bool:
    """Whether a step is an end of the run, or an end only repeats it."""
    followed = {source for each in trace.steps for source in each.predecessors}
    ends = [each for each in trace.steps if each.id not in followed]
    return any(each.id == step.id or _said(each) == _said(step) for each in ends)


def _said(step: Step) -> str:
    return " ".join(as_text(step.output).split()).rstrip(" .")


def as_text(snapshot: Snapshot) -> str:
    """What went in or came out, as text."""
    if snapshot.text is not None:
        return snapshot.text
    return "" if snapshot.data is None else orjson.dumps(snapshot.data).decode()


def _passed(row: CaseRow) -> bool:
    return row.error is None and bool(row.scores) and all(score.passed for score in row.scores)


def _expected(case: EvalCase, turn: int) -> str | None:
    return case.turns[turn].expected if turn < len(case.turns) else None


def _distinct(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings hold JSON values, so they have no hash."""
    seen: dict[str, Finding] = {}
    for finding in findings:
        seen.setdefault(repr(finding), finding)
    return tuple(seen.values())
