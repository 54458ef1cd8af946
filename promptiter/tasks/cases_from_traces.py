"""Eval cases from recorded runs: what users of an agent in production asked, without what nobody else should read.

    runs with a question ─▶ conversations ─▶ redacted cases ─▶ without near duplicates ─▶ a stratified sample

An answer of production is a reference only if people said that it was good, or wrote a better one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

from promptiter.errors import EvalSetError
from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Turn
from promptiter.grouping import group_by
from promptiter.llm.messages import Message
from promptiter.llm.redaction import process_redactor
from promptiter.tasks.case_selection import OUTCOMES, DraftCase, Outcome, drop_near_duplicates, sample_strata
from promptiter.tasks.feedback import Feedback, FeedbackFile, normalize_id
from promptiter.tasks.personal_data import CaseRedactor
from promptiter.tasks.recorded_run import ANSWERING_TOOLS, RecordedRun, read_turns
from promptiter.wording import join_names, plural
from traces import ExecutionTrace, ToolCall
from traces.model import Json

LeftOut: TypeAlias = Literal["no_content", "no_question", "later_turn", "duplicate", "sampled_out"]

MOST_TURNS = 20
"""More runs with the same conversation id are no conversation: each becomes a case of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCases:
    """Cases of recorded runs, in the order in which they ran, and what became of the other runs.

    `runs` is the number of runs, `left_out` how many of them are in no case and why. `redacted` counts what was
    replaced in the cases by kind, `unmatched` the rows of feedback about other runs.
    """

    cases: tuple[EvalCase, ...]
    runs: int
    left_out: Mapping[LeftOut, int]
    redacted: Mapping[str, int] = field(default_factory=dict)
    unmatched: int = 0

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """How many cases there are of each outcome."""
        counts = Counter(case.metadata["outcome"] for case in self.cases)
        return {outcome: counts[outcome] for outcome in OUTCOMES}

    @property
    def references(self) -> int:
        """How many cases have a reference answer."""
        return sum(any(turn.expected is not None for turn in case.turns) for case in self.cases)

    def to_eval_set(self, set_id: str = "traces") -> EvalSet:
        return EvalSet(id=set_id, cases=self.cases)


def cases_from_traces(
    traces: Iterable[ExecutionTrace],
    feedback: FeedbackFile | None = None,
    *,
    most: int | None = None,
    seed: int = 0,
    keep_personal_data: bool = False,
) -> TraceCases:
    """Make eval cases of recorded runs.

    Runs of one conversation become the turns of one case, up to the first that failed or was disliked: what the user
    said next was an answer to that. Of `most` cases, each outcome and each route through the agent gets its share.
    Secrets are always redacted, personal data unless it is to be kept. Raises EvalSetError if no run can become a case.
    """
    left_out: Counter[LeftOut] = Counter()
    runs = [run for trace in traces for run in _read(trace, feedback)]
    unmatched = _count_unmatched(runs, feedback)
    asked = list(_drop_empty(runs, left_out))
    talks = [_end_at_failure(talk, left_out) for talk in _group_turns(_judge_last_turns(asked))]
    secrets = process_redactor()
    drafts = [_make_case(talk, CaseRedactor(secrets, keep_personal_data=keep_personal_data)) for talk in talks]
    distinct = drop_near_duplicates(drafts)
    left_out["duplicate"] = _count_runs(drafts) - _count_runs(distinct)
    chosen = sample_strata(distinct, most, random.Random(seed))
    left_out["sampled_out"] = _count_runs(distinct) - _count_runs(chosen)
    return TraceCases(
        cases=tuple(_name_cases(each.case for each in chosen)),
        runs=len(runs),
        left_out={reason: left_out[reason] for reason in get_args(LeftOut)},
        redacted=dict(sum((each.redacted for each in chosen), Counter())),
        unmatched=unmatched,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgedRun:
    """A run, what was said about it, the nodes that ran, and whether the trace shows any text."""

    run: RecordedRun
    feedback: Feedback | None
    route: frozenset[str]
    ended_ns: int | None
    shows_text: bool

    @property
    def outcome(self) -> Outcome:
        """What people said counts more than an error, which the agent may have handled."""
        is_good = None if self.feedback is None else self.feedback.is_good
        if is_good:
            return "good"
        if self.run.error is not None:
            return "failed"
        return "unknown" if is_good is None else "disliked"


def _read(trace: ExecutionTrace, feedback: FeedbackFile | None) -> Iterator[_JudgedRun]:
    shows_text = any(
        value not in (None, "", [], {})
        for step in trace.steps
        for value in (step.input.text, step.input.data, step.output.text, step.output.data)
    )
    for run in read_turns(trace):
        yield _JudgedRun(
            run=run,
            feedback=None if feedback is None else feedback.find(run.trace_ids, run.conversation_id),
            route=frozenset(step.node_id for step in trace.steps),
            ended_ns=trace.end_ns,
            shows_text=shows_text,
        )


def _count_unmatched(runs: Sequence[_JudgedRun], feedback: FeedbackFile | None) -> int:
    """How many rows of feedback are about other runs. All of them is an error: the ids are of another kind."""
    if not runs:
        raise EvalSetError("there are no traces to make cases of; check which files were given")
    if feedback is None:
        return 0
    traces = {normalize_id(trace_id) for each in runs for trace_id in each.run.trace_ids}
    talks = {each.run.conversation_id for each in runs}
    unmatched = [
        row
        for row in feedback.rows
        if (row.trace_id not in traces if row.trace_id else row.conversation_id not in talks)
    ]
    if len(unmatched) == len(feedback.rows):
        given = [row.trace_id or row.conversation_id for row in unmatched]
        is_by_trace = any(row.trace_id for row in unmatched)
        known = [each.run.trace_id if is_by_trace else each.run.conversation_id or "" for each in runs]
        raise EvalSetError(
            f"no row of {feedback.source} is about one of the {plural(len(runs), 'trace')}: it has the ids "
            f"{_show_ids(given)}, and the traces {_show_ids(known) or 'no conversation ids'}; use the ids of the traces"
        )
    return len(unmatched)


def _show_ids(ids: Iterable[str]) -> str:
    return join_names([repr(each) for each in dict.fromkeys(filter(None, ids))], limit=2)


def _drop_empty(runs: Sequence[_JudgedRun], left_out: Counter[LeftOut]) -> Iterator[_JudgedRun]:
    """The runs with a question. If no trace shows any text, that is an error."""
    if not any(each.shows_text for each in runs):
        raise EvalSetError(
            f"none of the {plural(len(runs), 'trace')} has texts: the instrumentation did not capture the content of "
            "messages. Switch it on and record new runs: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true "
            "(OpenTelemetry; SPAN_ONLY in newer versions), TRACELOOP_TRACE_CONTENT=true (OpenLLMetry), "
            "OPENINFERENCE_HIDE_INPUTS=false and OPENINFERENCE_HIDE_OUTPUTS=false (OpenInference). If the content is "
            "in log records, give their file, too"
        )
    for each in runs:
        if each.run.question.strip():
            yield each
        else:
            left_out["no_question" if each.shows_text else "no_content"] += 1
    if left_out.total() == len(runs):
        raise EvalSetError(
            f"none of the {plural(len(runs), 'trace')} shows what the user asked: their first steps have no input; "
            "record the inputs of the agent"
        )


def _judge_last_turns(runs: Sequence[_JudgedRun]) -> list[_JudgedRun]:
    """The runs in order. Feedback on a whole conversation is about its last turn, unless all of it was good."""
    in_order = sorted(runs, key=lambda each: each.run.started_ns or 0)
    last = {each.run.conversation_id: each for each in in_order}
    return [
        replace(each, feedback=None)
        if _is_about_the_end(each.feedback) and each is not last[each.run.conversation_id]
        else each
        for each in in_order
    ]


def _group_turns(runs: Sequence[_JudgedRun]) -> Iterator[list[_JudgedRun]]:
    """The runs of each conversation, in order. A run that shows what was said before it needs no other."""
    talks = group_by(runs, lambda each: None if each.run.earlier else each.run.conversation_id)
    for conversation_id, talk in talks.items():
        if conversation_id is None or len(talk) > MOST_TURNS or _overlap(talk):
            yield from ([each] for each in talk)
        else:
            yield talk


def _overlap(talk: Sequence[_JudgedRun]) -> bool:
    """Whether a run started before the one before it had ended, as turns of a conversation do not."""
    return any((after.run.started_ns or 0) < (before.ended_ns or 0) for before, after in pairwise(talk))


def _end_at_failure(talk: list[_JudgedRun], left_out: Counter[LeftOut]) -> list[_JudgedRun]:
    """The turns up to the first that failed or was disliked."""
    bad = next((at for at, each in enumerate(talk) if each.outcome in ("failed", "disliked")), len(talk) - 1)
    left_out["later_turn"] += len(talk) - 1 - bad
    return talk[: bad + 1]


def _is_about_the_end(feedback: Feedback | None) -> bool:
    return feedback is not None and not feedback.trace_id and (not feedback.is_good or feedback.expected is not None)


def _make_case(talk: Sequence[_JudgedRun], redactor: CaseRedactor) -> DraftCase:
    outcomes = [each.outcome for each in talk]
    outcome = min(outcomes, key=OUTCOMES.index)
    decisive = talk[outcomes.index(outcome)]
    case = EvalCase(
        id=decisive.run.trace_id,
        context=tuple(Message(each.role, redactor.redact_text(each.content)) for each in talk[0].run.earlier),
        turns=tuple(_make_turn(each, redactor) for each in talk),
        metadata=_describe(decisive, talk, redactor),
    )
    return DraftCase(
        case=case,
        outcome=outcome,
        route=frozenset().union(*(each.route for each in talk)),
        started_ns=talk[0].run.started_ns or 0,
        redacted=+redactor.counts,
    )


def _make_turn(each: _JudgedRun, redactor: CaseRedactor) -> Turn:
    question = redactor.redact_text(each.run.question)
    is_good = each.outcome == "good"
    expected = each.run.answer if is_good and each.run.answer else None
    if each.feedback is not None and each.feedback.expected is not None:
        expected = each.feedback.expected
    calls = [call for call in each.run.tool_calls if is_good and not call.name.startswith(ANSWERING_TOOLS)]
    return Turn(
        user=question,
        expected=None if expected is None else redactor.redact_text(expected),
        expected_tool_calls=tuple(_expect_call(call, redactor) for call in calls) or None,
    )


def _expect_call(call: ToolCall, redactor: CaseRedactor) -> ExpectedToolCall:
    arguments = call.arguments
    if isinstance(arguments, Mapping) and arguments.get("args") == [] and isinstance(arguments.get("kwargs"), Mapping):
        arguments = arguments["kwargs"]  # as a tracer of Python functions writes them
    return ExpectedToolCall(name=call.name, arguments=redactor.redact_json(arguments))


def _describe(decisive: _JudgedRun, talk: Sequence[_JudgedRun], redactor: CaseRedactor) -> dict[str, Json]:
    run, started_ns = decisive.run, decisive.run.started_ns
    error = "" if run.error is None else run.error.text.partition("Traceback (most")[0].strip().partition("\n")[0][:200]
    time = "" if started_ns is None else datetime.fromtimestamp(started_ns / 1e9, UTC).isoformat(timespec="seconds")
    told = {
        "trace_id": run.trace_id,
        "trace_ids": [each.run.trace_id for each in talk] if len(talk) > 1 else None,
        "conversation_id": run.conversation_id and redactor.redact_text(run.conversation_id),
        "time": time,
        "outcome": decisive.outcome,
        "error": redactor.redact_text(error),
        "comment": decisive.feedback and redactor.redact_text(decisive.feedback.comment),
    }
    return {name: value for name, value in told.items() if value}


def _count_runs(drafts: Iterable[DraftCase]) -> int:
    return sum(each.runs for each in drafts)


def _name_cases(cases: Iterable[EvalCase]) -> Iterator[EvalCase]:
    """The cases with unique ids: two files may have a run of the same name."""
    taken: set[str] = set()
    for case in cases:
        name, number = case.id, 1
        while name in taken:
            number += 1
            name = f"{case.id}~{number}"
        taken.add(name)
        yield replace(case, id=name)
