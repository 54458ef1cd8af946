from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.backprop import JudgedTrace, Loss, backpropagate, extract_losses, get_passes, judge_traces
from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.errors import SetupError, StageError, UnknownSurfaceError
from promptiter.evaluation.trace_store import FileTraceStore
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile, SurfacePatch
from promptiter.runlog.codec import to_plain
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.contracts import AggregateRequest, AggregateResult, BackwardRequest, BackwardResult
from promptiter.stages.optimizer import OptimizeRequest, PatchResult, Rejection
from promptiter.structure import Node, StructureEdge, StructureSnapshot, Surface
from tests.worlds import desk
from tests.worlds.desk_stages import Blames, Merges, Writes
from traces import ExecutionTrace, Snapshot, Step, read_otel, read_traces, write_otel, write_traces

STRUCTURE = StructureSnapshot(
    nodes=(Node(id="note", kind="llm", description="Takes notes."), Node(id="reply", kind="llm")),
    edges=(StructureEdge(source="note", target="reply"),),
    surfaces=(
        Surface(node_id="note", type="instruction", value="Note what the customer asks for."),
        Surface(node_id="reply", type="instruction", value="Answer the customer."),
    ),
)
MAILS = {
    "AB-1042": "Where is my order AB-1042?",
    "CD-2077": "Cancel order CD-2077.",
    "EF-3001": "Is order EF-3001 paid?",
}


def trace(name: str, mail: str, note: str, reply: str) -> ExecutionTrace:
    def step(node_id: str, given: str, output: str, *before: str) -> Step:
        return Step(
            id=node_id,
            node_id=node_id,
            kind="llm",
            predecessors=before,
            input=Snapshot(given),
            output=Snapshot(output),
            surface_reads={f"{node_id}#instruction": ""},
        )

    return ExecutionTrace(id=name, steps=(step("note", mail, note), step("reply", note, reply, "note")))


def judged(order: str, *losses: Loss, note: str = "A question.") -> JudgedTrace:
    return JudgedTrace(
        case_id=order,
        trace=trace(order, MAILS[order], note, f"Thank you: {note}"),
        losses=losses,
        input=MAILS[order],
        expected=f"Order {order} is on its way.",
    )


FAILED = tuple(judged(order, Loss(text=f"the reply does not name {order}")) for order in MAILS)


async def test_recorded_traces_and_a_remark_on_each_give_a_patch_without_a_model(tmp_path: Path) -> None:
    write_traces(tmp_path / "recorded.jsonl", [await each.load() for each in FAILED])
    again = {each.id: each for each in read_traces(tmp_path / "recorded.jsonl")}
    found = await backpropagate([replace(each, trace=again[each.case_id]) for each in FAILED], structure=STRUCTURE)
    [patch] = found.patches
    assert patch.surface_id == "note#instruction"
    assert patch.value == "Note what the customer asks for. Always include the order id from the input in your output."
    assert patch.evidence.steps == ("AB-1042/note", "CD-2077/note", "EF-3001/note")
    assert {each.step_id for each in found.gradients} == {"note"}
    assert [signal.case_ids for signal in found.signals] == [tuple(sorted(MAILS))]


async def test_traces_from_opentelemetry_give_the_same_pass(tmp_path: Path) -> None:
    expected = await backpropagate(FAILED, structure=STRUCTURE)
    write_otel(tmp_path / "spans.otlp.jsonl", [await each.load() for each in FAILED])
    again = {each.steps[0].input.text: each for each in read_otel(tmp_path / "spans.otlp.jsonl")}
    found = await backpropagate(
        [replace(each, trace=again[MAILS[each.case_id]]) for each in FAILED], structure=STRUCTURE
    )
    assert len(found.patches) == 1
    assert [patch.value for patch in found.patches] == [patch.value for patch in expected.patches]
    assert [signal.text for signal in found.signals] == [signal.text for signal in expected.signals]


async def test_a_loss_is_on_the_terminal_steps_unless_it_names_one() -> None:
    for loss, place in ((Loss(text="wrong"), "reply"), (Loss(text="wrong", step_id="note"), "note")):
        found = await backpropagate([judged("AB-1042", loss)], structure=STRUCTURE, optimizer=Writes())
        [[only]] = [each.losses for each in found.losses]
        assert (only.step_id, only.expected) == (place, "Order AB-1042 is on its way.")


async def test_a_pass_is_what_a_round_does_with_the_same_evaluation() -> None:
    store = FileTraceStore()
    evaluator = desk.evaluator(trace_store=store)
    search = BackpropRounds(Blames(), Merges(), Writes(), passes=1, check=None)
    result = await Engine(desk.agent(), evaluator, search=search).run(desk.request(max_rounds=1, final_test=None))
    [[expected]] = [get_passes(each) for each in result.rounds]
    evaluation, train = result.rounds[0].train, desk.eval_set("train", 3)
    assert evaluation is not None

    losses = await extract_losses(evaluation, train, store.get)
    traces = judge_traces(evaluation, train, store.get, losses=losses)
    found = await backpropagate(
        traces, structure=result.structure, backwarder=Blames(), aggregator=Merges(), optimizer=Writes()
    )
    assert found.patches.surface_ids == {"draft#instruction", "polish#instruction"}
    in_round = orjson.dumps(to_plain(expected))
    prefix = f'"{evaluation.number}/train-'.encode()  # ids of gradients begin with the number of their evaluation
    assert prefix in in_round
    assert orjson.dumps(to_plain(found)) == in_round.replace(prefix, b'"train-')


async def test_stages_that_ask_a_model_use_the_active_gateway() -> None:
    def answer(request: ModelRequest) -> ModelReply:
        schema = json.dumps(request.schema)
        if '"gradients"' in schema:
            gradient = {"surface": "s1", "text": "keep the order id", "severity": "P1", "confidence": 0.9}
            return ModelReply(text=json.dumps({"gradients": [gradient], "packets": []}))
        if '"value"' in schema:
            return ModelReply(text=json.dumps({"reason": "it was lost", "value": "Note the order id."}))
        return ModelReply(text=json.dumps({"text": "keep the order id", "severity": "P1"}))

    model = ScriptedModel(answer)
    gateway = Gateway(models={"m": model})
    with gateway.active():
        found = await backpropagate(
            FAILED[:1],
            structure=STRUCTURE,
            targets=["note#instruction"],
            backwarder=LLMBackwarder("m"),
            aggregator=LLMAggregator("m"),
            optimizer=LLMOptimizer("m"),
        )
    assert [(patch.surface_id, patch.value) for patch in found.patches] == [("note#instruction", "Note the order id.")]
    assert gateway.ledger.snapshot().total.calls == len(model.requests) > 0


async def test_a_stage_that_fails_on_one_trace_or_surface_skips_only_that() -> None:
    class ShakyBlame(Blames):
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            if request.case_id == "CD-2077":
                raise ValueError("no idea")
            return await super().backward(request)

    class ShakyMerge(Merges):
        async def aggregate(self, request: AggregateRequest) -> AggregateResult:
            if request.surface.id == "reply#instruction":
                raise ValueError("too long")
            return await super().aggregate(request)

    class ShakyWriter(Writes):
        async def optimize(self, request: OptimizeRequest) -> PatchResult:
            if request.surface.id == "note#instruction":
                raise ValueError("no words")
            return await super().optimize(request)

    found = await backpropagate(
        FAILED, structure=STRUCTURE, backwarder=ShakyBlame(), aggregator=ShakyMerge(), optimizer=ShakyWriter()
    )
    assert [step.error for blame in found.blames for step in blame.results if step.error] == ["ValueError: no idea"]
    assert {signal.surface_id: signal.error for signal in found.signals} == {
        "note#instruction": None,
        "reply#instruction": "ValueError: too long",
    }
    assert found.patches.surface_ids == {"reply#instruction"}
    assert found.notes == ("note#instruction: ValueError: no words",)


async def test_a_stage_that_fails_on_everything_is_an_error() -> None:
    class Broken(Blames, Writes):
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            raise ValueError(f"no idea of {request.case_id}")

        async def optimize(self, request: OptimizeRequest) -> PatchResult:
            raise ValueError(f"no words for {request.surface.id}")

    with pytest.raises(StageError, match="failed and blamed no surface: ValueError: no idea of AB-1042"):
        await backpropagate(FAILED, structure=STRUCTURE, backwarder=Broken())
    with pytest.raises(StageError, match="wrote no patch: note#instruction: ValueError: no words for"):
        await backpropagate(FAILED, structure=STRUCTURE, optimizer=Broken())


async def test_a_patch_that_copies_a_case_is_refused_with_the_reason() -> None:
    copied = "Order AB-1042 is on its way."
    optimizer = Writes(lambda request: f"{request.surface.value} {copied}")
    found = await backpropagate(FAILED, structure=STRUCTURE, optimizer=optimizer)
    assert not found.patches
    assert len(optimizer.requests) == 2
    assert "'Order AB-1042 is on its way' is copied from case 'AB-1042'" in found.refused[0].reason
    assert optimizer.requests[-1].rejected == found.refused[:1]


async def test_traces_that_passed_count_as_cases_and_serve_as_examples() -> None:
    passed = [replace(judged("AB-1042", note="AB-1042"), case_id=f"passed-{number}") for number in range(20)]
    optimizer = Writes()
    few = await backpropagate([*FAILED[:1], *passed], structure=STRUCTURE, optimizer=optimizer)
    assert (len(few.signals), len(few.below_support), len(optimizer.requests)) == (0, 1, 0)
    await backpropagate([*FAILED, *passed[:2]], structure=STRUCTURE, optimizer=optimizer)
    assert [example.output for example in optimizer.requests[0].passing] == ["AB-1042", "AB-1042"]
    assert {example.case_id for example in optimizer.requests[0].failing} == set(MAILS)


async def test_a_pass_starts_from_the_given_profile_and_changes_only_targets() -> None:
    profile = Profile.of(STRUCTURE, {"reply#instruction": "Answer in one sentence."})
    found = await backpropagate(
        FAILED,
        structure=STRUCTURE,
        profile=profile,
        targets=["reply#instruction"],
        backwarder=Blames(),
        optimizer=Writes(),
    )
    assert [(patch.surface_id, patch.value) for patch in found.patches] == [
        ("reply#instruction", "Answer in one sentence. Be careful.")
    ]


async def test_traces_are_loaded_on_demand() -> None:
    loaded: list[str] = []

    def lazily(one: JudgedTrace) -> JudgedTrace:
        async def load() -> ExecutionTrace:
            loaded.append(one.case_id)
            return await one.load()

        return replace(one, trace=load)

    expected = await backpropagate(FAILED, structure=STRUCTURE)
    assert await backpropagate([lazily(each) for each in FAILED], structure=STRUCTURE) == expected
    assert set(loaded) == set(MAILS)


async def test_without_losses_there_is_nothing_to_patch() -> None:
    found = await backpropagate([judged("AB-1042")], structure=STRUCTURE, optimizer=Writes())
    assert (found.losses, found.gradients, found.signals, len(found.patches)) == ((), (), (), 0)


@pytest.mark.parametrize(
    ("traces", "targets", "problem"),
    [
        ([judged("AB-1042", Loss(text="wrong", step_id="draft"))], None, "is on step 'draft', which its trace lacks"),
        ([*FAILED, FAILED[0]], None, "case 'AB-1042' has two traces of repeat 0, turn 0"),
        (FAILED, "note#instruction", r"give a list: \['note#instruction'\]"),
    ],
)
async def test_what_cannot_be_backpropagated_is_named(
    traces: list[JudgedTrace], targets: list[str] | None, problem: str
) -> None:
    with pytest.raises(SetupError, match=problem):
        await backpropagate(traces, structure=STRUCTURE, targets=targets)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"traces": [FAILED[0].trace]}, r"traces has ExecutionTrace items; give JudgedTrace\(case_id=..., trace=trace"),
        ({"structure": Writes()}, r"structure is a Writes; give a structure, such as agent.describe\(\)"),
        ({"optimizer": Writes}, "Writes is a class, not an optimizer; create an object of it"),
        ({"backwarder": Writes()}, "is an optimizer, not a backwarder; give it as optimizer="),
    ],
)
async def test_arguments_of_the_wrong_kind_are_named(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(SetupError, match=problem):
        await backpropagate(**{"traces": FAILED, "structure": STRUCTURE, **arguments})


async def test_an_unknown_target_is_named() -> None:
    with pytest.raises(UnknownSurfaceError, match="did you mean 'note#instruction'"):
        await backpropagate(FAILED, structure=STRUCTURE, targets=["notes#instruction"])


async def test_traces_without_recorded_reads_are_attributed_by_their_nodes() -> None:
    def forget_reads(one: ExecutionTrace) -> ExecutionTrace:
        return replace(one, steps=tuple(replace(step, surface_reads=None) for step in one.steps))

    expected = await backpropagate(FAILED, structure=STRUCTURE)
    bare = [replace(each, trace=forget_reads(await each.load())) for each in FAILED]
    assert (await backpropagate(bare, structure=STRUCTURE)).patches == expected.patches


@pytest.mark.parametrize(
    ("nodes", "note"),
    [
        (("draft", "send"), "no node of the traces is one of the structure; they have note, reply and draft, send"),
        (("note", "send"), "no failed trace reads send#instruction"),
    ],
)
async def test_a_note_says_why_traces_of_another_agent_blame_nothing(nodes: tuple[str, ...], note: str) -> None:
    other = StructureSnapshot(
        nodes=tuple(Node(id=each) for each in nodes),
        surfaces=tuple(Surface(node_id=each, type="instruction", value="x") for each in nodes),
    )
    found = await backpropagate(FAILED, structure=other, targets=["send#instruction"])
    assert (len(found.patches), found.notes) == (0, (note,))


async def test_the_optimizer_sees_what_was_rejected_before() -> None:
    optimizer = Writes()
    before = Rejection(surface_id="note#instruction", value="Note everything.", reason="too long")
    others = Rejection(surface_id="reply#instruction", value="Reply.", reason="too short")
    await backpropagate(FAILED, structure=STRUCTURE, optimizer=optimizer, rejected=[before, others])
    assert [request.rejected for request in optimizer.requests] == [(before,)]


async def test_evidence_that_an_optimizer_gives_is_kept() -> None:
    class Names(Writes):
        async def optimize(self, request: OptimizeRequest) -> PatchResult:
            answer = await super().optimize(request)
            assert isinstance(answer.patch, SurfacePatch)
            return replace(
                answer, patch=replace(answer.patch, evidence=replace(answer.patch.evidence, cases=("CD-2077",)))
            )

    found = await backpropagate(FAILED, structure=STRUCTURE, optimizer=Names())
    [patch] = found.patches
    assert (patch.evidence.cases, patch.evidence.steps) == (("CD-2077",), ("CD-2077/note",))
    assert patch.evidence.gradients == ("CD-2077~0~0/note/0",)
