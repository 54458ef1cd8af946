"""Builds the records that a reflection model sees of a mini-batch: `stages/reflection.py` says what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from promptiter.backprop.llm.rendering import render_call, render_snapshot
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.metrics.metric import summarize_findings
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Finding, Score
from promptiter.evaluation.trace_store import ReadTrace
from promptiter.stages.reflection import CaseRecord, StepRecord, TurnRecord
from traces import ExecutionTrace

MOST_FINDINGS = 8
"""Maximum number of findings of one metric in the verdict on a turn."""


async def build_case_records(
    evaluation: Evaluation,
    eval_set: EvalSet,
    read_trace: ReadTrace,
    *,
    node_id: str,
    scores: Mapping[str, float],
    history: Mapping[str, Sequence[tuple[float, str]]],
) -> tuple[CaseRecord, ...]:
    """Build one record per case, in the order of the eval set, with the steps of a node.

    Of a case with several repeats, the one with the lowest score is shown.
    """
    found = []
    for case in eval_set.cases:
        rows = evaluation.rows_by_case.get(case.id, ())
        if not rows:
            continue
        row = min(rows, key=lambda each: (_measure(each, evaluation), each.repeat))
        traces = [await read_trace(digest) for digest in row.trace_digests]
        turns = tuple(_build_turns(case, row, traces, node_id))
        overall = tuple(map(describe_verdict, row.scores)) if len(turns) > 1 or len(rows) > 1 else ()
        found.append(
            CaseRecord(
                case_id=case.id,
                score=scores[case.id],
                turns=turns,
                overall=(*overall, *_describe_repeats(rows, evaluation)),
                history=tuple(history.get(case.id, ())),
            )
        )
    return tuple(found)


def describe_verdict(score: Score) -> str:
    """`[FAIL] exact_match: score=0.0000, threshold=1.0000`, with the reason and what was found."""
    return _describe_verdict(score, score.reason, score.findings)


def _describe_verdict(score: Score, reason: str, findings: Sequence[Finding]) -> str:
    if score.value is None:
        return f"[UNSCORED] {score.metric}: {score.error or 'no score'}"
    head = f"[{'PASS' if score.passed else 'FAIL'}] {score.metric}: score={score.value:.4f}"
    lines = [f"{head}, threshold={score.threshold:.4f}"]
    lines += [f"reason: {reason}"] if reason else []
    for finding in findings[:MOST_FINDINGS]:
        rubric = finding.predicate.removeprefix("rubric:") if finding.predicate.startswith("rubric:") else ""
        text = f"rubric[{rubric}]: FAIL {finding.actual}" if rubric else summarize_findings([finding])
        if rubric or text not in reason:
            lines.append(f"· {text}")
    return "\n".join(lines)


def _build_turns(case: EvalCase, row: CaseRow, traces: Sequence[ExecutionTrace], node_id: str) -> Iterator[TurnRecord]:
    """The turns that the case has, or that were recorded, as a scenario's are."""
    count = max(1, len(case.turns), len(traces))
    for number in range(count):
        turn = case.find_turn(number)
        trace = traces[number] if number < len(traces) else None
        is_last = number == count - 1
        failed = [str(row.error)] if row.error is not None and is_last else []
        yield TurnRecord(
            user=case.find_question(number) or _read_first_input(trace),
            expected=None if turn is None else turn.expected,
            response=_read_answer(trace) or (row.output if is_last else ""),
            tools=() if trace is None else tuple(_list_calls(trace)),
            verdict=(*failed, *(_describe_turn(score, number, count) for score in row.scores)),
            steps=() if trace is None else tuple(_list_steps(trace, node_id)),
        )


def _describe_turn(score: Score, number: int, count: int) -> str:
    """The verdict of a metric on one turn of several: its score is that of the whole case."""
    if count == 1:
        return describe_verdict(score)
    reason = score.turn_reasons[number] if number < len(score.turn_reasons) else ""
    return _describe_verdict(score, reason, [each for each in score.findings if each.turn == number])


def _describe_repeats(rows: Sequence[CaseRow], evaluation: Evaluation) -> tuple[str, ...]:
    if len(rows) == 1:
        return ()
    return (f"scores of its {len(rows)} repeats: " + ", ".join(f"{_measure(each, evaluation):.4f}" for each in rows),)


def _measure(row: CaseRow, evaluation: Evaluation) -> float:
    return evaluation.summarize(row.case_id, (row,)).score or 0.0


def _read_answer(trace: ExecutionTrace | None) -> str:
    terminals = () if trace is None else trace.terminals
    return render_snapshot(terminals[-1].output) if terminals else ""


def _read_first_input(trace: ExecutionTrace | None) -> str:
    return render_snapshot(trace.steps[0].input) if trace is not None and trace.steps else ""


def _list_calls(trace: ExecutionTrace) -> Iterator[str]:
    for step in trace.steps:
        for call in step.tool_calls:
            name, _, result = render_call(call).partition("\n")
            yield f"{name} → {result}"


def _list_steps(trace: ExecutionTrace, node_id: str) -> Iterator[StepRecord]:
    for step in trace.steps:
        if step.node_id == node_id:
            yield StepRecord(
                input=render_snapshot(step.input),
                output=render_snapshot(step.output),
                error="" if step.error is None else str(step.error),
            )
