"""JudgedTraces: recorded runs with what was wrong with them, and what the stages see of the other runs.

A pass starts from these. They come from an evaluation (`judge_traces`), or from anywhere else: a file of recorded
traces and a person who says what went wrong are enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from promptiter.backprop.loss import render_earlier
from promptiter.backprop.step_text import json_text
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Turn
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Finding
from promptiter.evaluation.trace_store import ReadTrace
from promptiter.grouping import group_by
from promptiter.stages.contracts import Peer, SurfaceGradient
from promptiter.stages.losses import CaseLoss, Loss
from promptiter.stages.optimizer import NodePlace, StepExample
from promptiter.structure import Surface
from traces import ExecutionTrace, Step, ToolCall
from traces.model import Json, Snapshot

MAX_PEERS = 20
"""Maximum number of passing peers, and of failing ones."""

MAX_EXAMPLES = 40
"""Maximum number of failing examples for an optimizer, and of passing ones."""

MAX_VISITS = 500
"""Maximum number of failing runs, and of passing ones, that few-shot examples are taken from."""

MAX_TOOL_CALLS = 5
"""Maximum number of calls of a tool that show an optimizer what it returns."""

LoadTrace: TypeAlias = Callable[[], Awaitable[ExecutionTrace]]
"""Loads a trace when it is needed, so that not all of them are in memory."""

LoadText: TypeAlias = Callable[[], Awaitable[str]]
"""Loads a text when it is needed."""

TurnKey: TypeAlias = tuple[str, int, int]
"""Case id, repeat and turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTrace:
    """The trace of one turn of a run, and what was wrong with it. By default it passed if it has no losses.

    A loss without a `step_id` is placed on every terminal step. `input` is what the user said, `earlier` the
    conversation before it, or a function that loads it, `expected` the reference answer, if there is one. Runs of the
    same case have the same `case_id`; support is counted in cases. `trace_digest` is the name of the trace in a trace
    store.
    """

    case_id: str
    trace: ExecutionTrace | LoadTrace
    losses: tuple[Loss, ...] = ()
    input: str = ""
    expected: str | None = None
    expected_tool_calls: tuple[ExpectedToolCall, ...] | None = None
    repeat: int = 0
    turn: int = 0
    passed: bool | None = None
    trace_digest: str = ""
    earlier: str | LoadText = ""

    @property
    def key(self) -> TurnKey:
        return self.case_id, self.repeat, self.turn

    @property
    def has_passed(self) -> bool:
        return not self.losses if self.passed is None else self.passed

    @property
    def reasons(self) -> tuple[str, ...]:
        """What was wrong with the run, in the words of the metrics."""
        return tuple(dict.fromkeys(loss.report for loss in self.losses if loss.text))

    async def load(self) -> ExecutionTrace:
        return self.trace if isinstance(self.trace, ExecutionTrace) else await self.trace()

    async def load_earlier(self) -> str:
        return self.earlier if isinstance(self.earlier, str) else await self.earlier()

    async def build_case_loss(self) -> CaseLoss:
        """The losses of this trace, each on a step."""
        trace = await self.load()
        known = {step.id for step in trace.steps}
        placed: list[Loss] = []
        for loss in self.losses:
            if loss.step_id and loss.step_id not in known:
                raise SetupError(f"a loss of case {self.case_id!r} is on step {loss.step_id!r}, which its trace lacks")
            expected = self.expected if loss.expected is None else loss.expected
            places = [loss.step_id] if loss.step_id else [step.id for step in trace.terminals]
            placed += [replace(loss, step_id=step_id, expected=expected) for step_id in places]
        return CaseLoss(
            case_id=self.case_id,
            repeat=self.repeat,
            turn=self.turn,
            input=self.input or trace.steps[0].input.text or "",
            earlier=await self.load_earlier(),
            trace_digest=self.trace_digest,
            losses=tuple(placed),
        )


@dataclass(frozen=True, slots=True)
class AgentSurvey:
    """What runs show of an agent: where each node is, and some calls of each tool with their results, by node."""

    places: Mapping[str, NodePlace]
    calls: Mapping[tuple[str, str], tuple[Json, ...]]

    @classmethod
    def of(cls, traces: Iterable[ExecutionTrace]) -> AgentSurvey:
        sources: defaultdict[str, dict[str, None]] = defaultdict(dict)
        readers: defaultdict[str, dict[str, None]] = defaultdict(dict)
        calls: defaultdict[tuple[str, str], dict[str, Json]] = defaultdict(dict)
        for trace in traces:
            nodes = {step.id: step.node_id for step in trace.steps}
            for step in trace.steps:
                sources[step.node_id].update((nodes[source], None) for source in step.sources)
                for source in step.sources:
                    readers[nodes[source]][step.node_id] = None
                for call in step.tool_calls:
                    described = _describe_call(call)
                    calls[step.node_id, call.name].setdefault(json_text(described), described)
        places = {
            node_id: NodePlace(sources=tuple(sources[node_id]), readers=tuple(readers[node_id]))
            for node_id in [*sources]
        }
        return cls(places, {key: tuple(found.values())[:MAX_TOOL_CALLS] for key, found in calls.items()})

    def find_calls(self, surface: Surface) -> tuple[Json, ...]:
        """Some calls of the tool that a surface describes; none of any other surface."""
        return self.calls.get((surface.node_id, surface.part), ()) if surface.type == "tool" else ()


class JudgedTraces:
    """The traces of one pass, by case, repeat and turn."""

    def __init__(self, traces: Iterable[JudgedTrace]) -> None:
        self._by_key: dict[TurnKey, JudgedTrace] = {}
        for each in traces:
            _check_type(each)
            if each.key in self._by_key:
                raise SetupError(
                    f"case {each.case_id!r} has two traces of repeat {each.repeat}, turn {each.turn}; "
                    "number its repeats, or give each trace a case_id of its own"
                )
            self._by_key[each.key] = each

    @property
    def failed(self) -> list[JudgedTrace]:
        return [each for each in self._by_key.values() if each.losses]

    @property
    def cases(self) -> list[EvalCase]:
        """What the traces say about their cases."""
        turns: dict[str, dict[int, Turn]] = {}
        for each in self._by_key.values():
            turn = Turn(user=each.input, expected=each.expected, expected_tool_calls=each.expected_tool_calls)
            turns.setdefault(each.case_id, {}).setdefault(each.turn, turn)
        return [EvalCase(id=case_id, turns=tuple(found.values())) for case_id, found in turns.items()]

    @property
    def criteria(self) -> dict[str, str]:
        """What the metrics that failed look at, by name, as far as they say so."""
        losses = (loss for each in self._by_key.values() for loss in each.losses if loss.criterion)
        return {loss.metric: loss.criterion for loss in losses}

    def find(self, key: TurnKey) -> JudgedTrace | None:
        return self._by_key.get(key)

    async def load(self, key: TurnKey) -> ExecutionTrace:
        return await self._by_key[key].load()

    async def select_peers(self) -> tuple[Peer, ...]:
        """Some passing and some failing runs, the same on every call."""
        chosen = [*self._take_runs(MAX_PEERS, passed=True), *self._take_runs(MAX_PEERS, passed=False)]
        return tuple(
            [
                Peer(
                    case_id=run.case_id,
                    trace=await run.load(),
                    passed=run.has_passed,
                    expected=run.expected,
                    expected_tool_calls=run.expected_tool_calls,
                )
                for run in chosen
            ]
        )

    async def collect_passing(self, gradients: Sequence[SurfaceGradient]) -> tuple[StepExample, ...]:
        """The last visit of a blamed node in each run that passed."""
        blamed = {await self._find_node_id(gradient) for gradient in gradients[:MAX_EXAMPLES]}
        examples = []
        for run in self._take_runs(MAX_EXAMPLES, passed=True):
            trace = await run.load()
            visits = [step for step in trace.steps if step.node_id in blamed]
            if visits:
                examples.append(await _build_example(run, trace, visits[-1], passed=True))
        return tuple(examples)

    async def collect_failing(self, gradients: Sequence[SurfaceGradient]) -> tuple[StepExample, ...]:
        """The blamed steps with the findings and reasons that the blame names, one example per step."""
        blamed = group_by(gradients, lambda gradient: (_find_key(gradient), gradient.step_id))
        examples = []
        for (key, step_id), same in list(blamed.items())[:MAX_EXAMPLES]:
            run = self._by_key[key]
            trace = await run.load()
            step = next(step for step in trace.steps if step.id == step_id)
            findings = [finding for gradient in same for finding in gradient.findings]
            reasons = [reason for gradient in same for reason in gradient.reasons or run.reasons]
            examples.append(await _build_example(run, trace, step, passed=False, findings=findings, reasons=reasons))
        return tuple(examples)

    async def collect_node_failures(self, node_id: str) -> tuple[StepExample, ...]:
        """The last visit of a node in each run that failed, with all that was wrong with the run."""
        examples = []
        for run in self._take_runs(MAX_EXAMPLES, passed=False):
            trace = await run.load()
            visits = [step for step in trace.steps if step.node_id == node_id]
            if visits:
                findings = [finding for loss in run.losses for finding in loss.findings]
                examples.append(
                    await _build_example(run, trace, visits[-1], passed=False, findings=findings, reasons=run.reasons)
                )
        return tuple(examples)

    async def collect_visits(self, node_id: str) -> tuple[StepExample, ...]:
        """The last visit of a node in each run, whether it passed or failed. Only a last step counts as terminal."""
        runs = [*self._take_runs(MAX_VISITS, passed=True), *self._take_runs(MAX_VISITS, passed=False)]
        examples = []
        for run in runs:
            trace = await run.load()
            visits = [step for step in trace.steps if step.node_id == node_id]
            if visits:
                findings = [finding for loss in run.losses for finding in loss.findings]
                found = await _build_example(run, trace, visits[-1], passed=run.has_passed, findings=findings)
                is_last = any(each.id == visits[-1].id for each in trace.terminals)
                examples.append(replace(found, is_terminal=is_last))
        return tuple(examples)

    async def survey(self) -> AgentSurvey:
        """What the selected runs show of the agent."""
        return AgentSurvey.of(peer.trace for peer in await self.select_peers())

    async def _find_node_id(self, gradient: SurfaceGradient) -> str:
        trace = await self.load(_find_key(gradient))
        return next(step.node_id for step in trace.steps if step.id == gradient.step_id)

    def _take_runs(self, count: int, *, passed: bool) -> list[JudgedTrace]:
        """The last turns of the first runs that passed, or the last failed turns of those that did not."""
        turns = sorted(self._by_key.values(), key=lambda each: (bool(each.losses), each.turn))
        last = {(each.case_id, each.repeat): each for each in turns}
        in_order = (each for each in self._by_key.values() if last[each.case_id, each.repeat] is each)
        return [each for each in in_order if each.has_passed is passed][:count]


def judge_traces(
    evaluation: Evaluation,
    eval_set: EvalSet,
    load_trace: ReadTrace,
    *,
    losses: Iterable[CaseLoss],
) -> tuple[JudgedTrace, ...]:
    """The traces of an evaluation with the losses that were extracted from it. `load_trace` is called with a digest."""
    cases = {case.id: case for case in eval_set.cases}
    failed = {(each.case_id, each.repeat, each.turn): each for each in losses}

    async def load_earlier(row: CaseRow, turn: int) -> str:
        return render_earlier(cases[row.case_id], [await load_trace(digest) for digest in row.trace_digests[:turn]])

    def judge(row: CaseRow, turn: int, trace_digest: str) -> JudgedTrace:
        given, loss = cases[row.case_id].find_turn(turn), failed.get((row.case_id, row.repeat, turn))
        return JudgedTrace(
            case_id=row.case_id,
            trace=lambda: load_trace(trace_digest),
            losses=() if loss is None else loss.losses,
            input="" if given is None else given.user,
            earlier=partial(load_earlier, row, turn) if loss is None else loss.earlier,
            expected=None if given is None else given.expected,
            expected_tool_calls=None if given is None else given.expected_tool_calls,
            repeat=row.repeat,
            turn=turn,
            passed=row.passed,
            trace_digest=trace_digest,
        )

    return tuple(
        judge(row, turn, trace_digest) for row in evaluation.rows for turn, trace_digest in enumerate(row.trace_digests)
    )


def _find_key(gradient: SurfaceGradient) -> TurnKey:
    return gradient.case_id, gradient.repeat, gradient.turn


async def _build_example(
    run: JudgedTrace,
    trace: ExecutionTrace,
    step: Step,
    *,
    passed: bool,
    findings: Iterable[Finding] = (),
    reasons: Iterable[str] = (),
) -> StepExample:
    expected_calls = run.expected_tool_calls
    is_answer = _is_answer(step, trace)
    return StepExample(
        case_id=run.case_id,
        step_id=step.id,
        input=_describe(step.input),
        output=_describe(step.output),
        passed=passed,
        expected=run.expected,
        case_input=run.input,
        earlier=await run.load_earlier(),
        is_terminal=is_answer,
        tool_calls=tuple(map(_describe_call, step.tool_calls)),
        findings=_deduplicate(findings),
        reasons=tuple(dict.fromkeys(reasons)),
        answer=None if is_answer else "\n".join(_describe(each.output) for each in trace.terminals),
        expected_tool_calls=None
        if expected_calls is None
        else tuple({"name": call.name, "arguments": call.arguments} for call in expected_calls),
    )


def _describe_call(call: ToolCall) -> Json:
    return {"name": call.name, "arguments": call.arguments, "result": call.result}


def _is_answer(step: Step, trace: ExecutionTrace) -> bool:
    """Whether a step is terminal, or a terminal step has the same output."""
    output = _normalize_output(step)
    return any(each.id == step.id or _normalize_output(each) == output for each in trace.terminals)


def _normalize_output(step: Step) -> str:
    return " ".join(_describe(step.output).split()).rstrip(" .")


def _describe(snapshot: Snapshot) -> str:
    return json_text(snapshot.data) if snapshot.text is None else snapshot.text


def _deduplicate(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each finding once. Findings hold JSON values and cannot be hashed."""
    seen: dict[str, Finding] = {}
    for finding in findings:
        seen.setdefault(repr(finding), finding)
    return tuple(seen.values())


def _check_type(trace: object) -> None:
    if not isinstance(trace, JudgedTrace):
        raise SetupError(
            f"traces has {type(trace).__name__} items; give JudgedTrace(case_id=..., trace=trace, losses=(Loss(...),))"
        )
