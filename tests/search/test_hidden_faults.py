"""One prompt with several faults and an exact metric: each fault shows only once the one before it is fixed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from promptiter.agents.base import AgentRun
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.record import get_passes
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.trace_store import FileTraceStore
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.policies.stopping import TargetScore
from promptiter.profile import SurfacePatch
from promptiter.runlog.journal import MemoryJournal
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.contracts import AttributeRequest, BackwardResult, SurfaceGradient
from promptiter.stages.optimizer import OptimizeRequest, PatchResult

RULES = ("name the city", "name the date", "write dates as 2026-01-31", "end with a full stop", "use capital letters")
"""What the instruction must say, in the order in which the model gets to the parts of its answer."""

FORM = "form#instruction"


def answer(request: ModelRequest) -> ModelReply:
    """The answer has the parts that the instruction asks for, up to the first part that it does not ask for."""
    instruction = request.messages[0].content
    known = next((number for number, rule in enumerate(RULES) if rule not in instruction), len(RULES))
    return ModelReply(text=f"{request.messages[-1].content} {known}")


def build_agent(faults: int) -> GraphAgent:
    """The instruction lacks the first rules, as many as there are faults."""
    instruction = " ".join(["Fill in the form.", *(f"{rule}." for rule in RULES[faults:])])
    return GraphAgent(name="form", nodes=(ModelNode(name="form", instruction=instruction, model="scripted"),))


class BlamesTheForm:
    """Names the first rule that an answer lacks, which is all that the answer shows."""

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        [step] = request.trace.steps
        rule = RULES[int((step.output.text or "").split()[-1])]
        gradient = SurfaceGradient(
            surface_id=FORM, case_id=request.case_loss.case_id, step_id=step.id, text=f"It does not {rule}."
        )
        return [BackwardResult(step_id=step.id, gradients=(gradient,))]


class AddsRules:
    """Adds the rule that the failing answers lack."""

    def __init__(self, write: Callable[[OptimizeRequest], str] | None = None) -> None:
        self.requests: list[OptimizeRequest] = []
        self.write = write or add_rule

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        self.requests.append(request)
        return PatchResult(patch=SurfacePatch(surface_id=FORM, value=self.write(request), reason="a rule"))


def add_rule(request: OptimizeRequest) -> str:
    lacking = {int(example.output.split()[-1]) for example in request.failing}
    return f"{request.surface.value} " + " ".join(f"{RULES[each].capitalize()}." for each in sorted(lacking)).lower()


def eval_set(name: str, count: int) -> EvalSet:
    return EvalSet(
        id=name, cases=tuple(EvalCase(id=f"{name}-{n}", turns=(Turn(user=f"{name} {n}"),)) for n in range(count))
    )


def request(**changes: object) -> RunRequest:
    values: dict[str, object] = {
        "train": eval_set("train", 4),
        "validation": eval_set("validation", 3),
        "stop": TargetScore(1.0),
        "run_id": "r",
        "final_test": None,
    }
    return RunRequest(**(values | changes))  # type: ignore[arg-type]


def engine(
    optimizer: AddsRules,
    *,
    faults: int,
    passes: int = 3,
    trace_store: FileTraceStore | None = None,
    partial_credit: bool = False,
) -> Engine:
    def score(_: EvalCase, run: AgentRun) -> tuple[float, str]:
        followed = int(str(run.output).split()[-1])
        share = followed / len(RULES) if partial_credit else float(followed == len(RULES))
        return share, f"{followed} rules are followed"

    evaluator = Evaluator(
        [FunctionMetric(name="exact", function=score)],
        gateway=Gateway(models={"scripted": ScriptedModel(answer)}),
        trace_store=trace_store,
    )
    search = BackpropRounds(BlamesTheForm(), optimizer=optimizer, passes=passes)
    return Engine(build_agent(faults), evaluator, search=search)


async def test_a_second_fault_of_a_patched_prompt_is_fixed_in_the_same_round() -> None:
    optimizer = AddsRules()
    result = await engine(optimizer, faults=2).run(request())
    [only] = result.rounds
    assert (result.accepted_score, result.stop_reason) == (1.0, "target_score")
    assert [[patch.surface_id for patch in each.patches] for each in get_passes(only)] == [[FORM], [FORM]]
    [first, second] = optimizer.requests
    assert RULES[0] in str(second.surface.value), "the second pass starts from the patched prompt"
    assert {example.output.split()[-1] for example in first.failing} == {"0"}
    assert {example.output.split()[-1] for example in second.failing} == {"1"}, "and from what failed with it"


async def test_a_round_continues_from_what_failed_with_the_candidate_that_was_rejected() -> None:
    """Five faults and three passes: after the first round, two faults are left, and no case passes yet."""
    optimizer = AddsRules()
    result = await engine(optimizer, faults=5).run(request())
    first, second = result.rounds
    assert first.decision is not None
    assert first.decision.reason == "the 4 failed train cases that were run again did no better"
    assert result.accepted_score == 1.0
    shown = [{example.output.split()[-1] for example in each.failing} for each in optimizer.requests]
    assert shown == [{"0"}, {"1"}, {"2"}, {"3"}, {"4"}]
    assert [change.after for change in result.changes] == [patch.value for patch in second.patches]
    assert len([each for each in second.all_evaluations if each.phase == "train"]) == 0


async def test_the_optimizer_sees_what_failed_with_the_rejected_value() -> None:
    def write(request: OptimizeRequest) -> str:
        if request.rejected:
            return add_rule(request)
        return f"{request.surface.value} Once more ({len(request.failing)} cases)."

    optimizer = AddsRules(write)
    result = await engine(optimizer, faults=1, passes=1).run(request())
    reasons = [each.decision.accepted for each in result.rounds if each.decision is not None]
    assert reasons == [False, True]
    [rejection] = optimizer.requests[-1].rejected
    assert [(each.case_id, each.output) for each in rejection.failing] == [
        (f"train-{number}", f"train {number} 0") for number in range(4)
    ]
    assert all(each.reasons for each in rejection.failing)


async def test_a_pass_that_makes_the_cases_worse_is_left_out() -> None:
    def write(request: OptimizeRequest) -> str:
        if "careful" in str(request.surface.value):
            return "Ignore the form."
        return f"{add_rule(request)} Be careful."

    optimizer = AddsRules(write)
    result = await engine(optimizer, faults=2, partial_credit=True).run(request(max_rounds=1))
    [only] = result.rounds
    assert [patch.value for each in get_passes(only) for patch in each.patches][-1] == "Ignore the form."
    assert [str(change.after).endswith("Be careful.") for change in result.changes] == [True]


@pytest.mark.long
@pytest.mark.parametrize(("faults", "passes"), [(2, 1), (5, 3)])
async def test_a_resumed_run_ends_as_one_that_was_not_interrupted(faults: int, passes: int) -> None:
    whole, trace_store = MemoryJournal(), FileTraceStore()
    expected = await engine(AddsRules(), faults=faults, passes=passes, trace_store=trace_store).run(
        request(), journal=whole
    )
    events = list(whole.events)
    for count in range(1, len(events) - 1, 2):
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        optimizer = AddsRules()
        result = await engine(optimizer, faults=faults, passes=passes, trace_store=trace_store).run(
            request(), journal=journal
        )
        assert result == expected
        written = sum(event.type == "patches" for event in events[:count])
        assert len(optimizer.requests) == sum(event.type == "patches" for event in events) - written
