"""EvaluatedRuns: what the stages see of an evaluation: runs of other cases, and examples of a node's steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Finding
from promptiter.stages.contracts import Peer, StepExample, SurfaceGradient
from traces import ExecutionTrace, Step
from traces.model import Snapshot

MOST_PEERS = 20
"""Maximum number of passing peers, and of failing ones."""

MOST_EXAMPLES = 40
"""Maximum number of failing examples for an optimizer, and of passing ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRuns:
    """The runs of one evaluation with their cases. Traces are loaded on demand."""

    rows: tuple[CaseRow, ...]
    cases: Mapping[str, EvalCase]
    trace_of: Callable[[str], ExecutionTrace]

    @staticmethod
    def of(evaluation: Evaluation, eval_set: EvalSet, trace_of: Callable[[str], ExecutionTrace]) -> EvaluatedRuns:
        return EvaluatedRuns(rows=evaluation.rows, cases={case.id: case for case in eval_set.cases}, trace_of=trace_of)

    def select_peers(self) -> tuple[Peer, ...]:
        """Some passing and some failing runs, the same on every call."""
        chosen = [*self._take_rows(MOST_PEERS, passed=True), *self._take_rows(MOST_PEERS, passed=False)]
        return tuple(
            Peer(
                case_id=row.case_id,
                trace=self.trace_of(row.trace_digests[-1]),
                passed=has_passed(row),
                expected=_find_expected(self.cases[row.case_id].find_turn(len(row.trace_digests) - 1)),
            )
            for row in chosen
        )

    def collect_passing(self, gradients: Sequence[SurfaceGradient]) -> tuple[StepExample, ...]:
        """The last visit of a blamed node in each run that passed."""
        blamed = {self._find_node_id(gradient) for gradient in gradients[:MOST_EXAMPLES]}
        examples = []
        for row in self._take_rows(MOST_EXAMPLES, passed=True):
            turn = len(row.trace_digests) - 1
            trace = self.trace_of(row.trace_digests[-1])
            visits = [step for step in trace.steps if step.node_id in blamed]
            if visits:
                examples.append(self._build_example(row, trace, visits[-1], turn=turn, passed=True))
        return tuple(examples)

    def collect_failing(self, gradients: Sequence[SurfaceGradient]) -> tuple[StepExample, ...]:
        """The blamed steps with their findings, one example per step."""
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
            examples.append(self._build_example(row, trace, step, turn=turn, passed=False, findings=findings))
        return tuple(examples)

    def _find_node_id(self, gradient: SurfaceGradient) -> str:
        row = next(row for row in self.rows if (row.case_id, row.repeat) == (gradient.case_id, gradient.repeat))
        trace = self.trace_of(row.trace_digests[gradient.turn])
        return next(step.node_id for step in trace.steps if step.id == gradient.step_id)

    def _take_rows(self, count: int, *, passed: bool) -> list[CaseRow]:
        return [row for row in self.rows if row.trace_digests and has_passed(row) is passed][:count]

    def _build_example(
        self,
        row: CaseRow,
        trace: ExecutionTrace,
        step: Step,
        *,
        turn: int,
        passed: bool,
        findings: Iterable[Finding] = (),
    ) -> StepExample:
        given = self.cases[row.case_id].find_turn(turn)
        expected_calls = given.expected_tool_calls if given is not None else None
        return StepExample(
            case_id=row.case_id,
            step_id=step.id,
            input=describe_snapshot(step.input),
            output=describe_snapshot(step.output),
            passed=passed,
            expected=_find_expected(given),
            case_input=given.user if given is not None else "",
            is_terminal=_is_answer(step, trace),
            tool_calls=tuple(
                {"name": call.name, "arguments": call.arguments, "result": call.result} for call in step.tool_calls
            ),
            findings=_deduplicate(findings),
            expected_tool_calls=None
            if expected_calls is None
            else tuple({"name": call.name, "arguments": call.arguments} for call in expected_calls),
        )


def _is_answer(step: Step, trace: ExecutionTrace) -> bool:
    """Whether a step is terminal, or a terminal step has the same output."""
    output = _normalize_output(step)
    return any(each.id == step.id or _normalize_output(each) == output for each in trace.terminals)


def _normalize_output(step: Step) -> str:
    return " ".join(describe_snapshot(step.output).split()).rstrip(" .")


def describe_snapshot(snapshot: Snapshot) -> str:
    """The input or output of a step as text."""
    if snapshot.text is not None:
        return snapshot.text
    return "" if snapshot.data is None else orjson.dumps(snapshot.data).decode()


def has_passed(row: CaseRow) -> bool:
    return row.error is None and bool(row.scores) and all(score.passed for score in row.scores)


def _find_expected(turn: Turn | None) -> str | None:
    return turn.expected if turn is not None else None


def _deduplicate(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each finding once. Findings hold JSON values and cannot be hashed."""
    seen: dict[str, Finding] = {}
    for finding in findings:
        seen.setdefault(repr(finding), finding)
    return tuple(seen.values())
