"""What a real agent's runs look like to the models of the stages: from the trace to the rendered prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

import pytest

from promptiter.agents.declarations import Tool
from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.backprop.backward_pass import BackwardPass
from promptiter.backprop.judged_traces import JudgedTraces, judge_traces
from promptiter.backprop.lint import Linter
from promptiter.backprop.llm.attributor import MOST_RUNS, LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.patch_writing import PatchWriter
from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.backprop.record import TraceBlame
from promptiter.errors import BadRequestError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FinalResponseMetric, FunctionMetric
from promptiter.evaluation.metrics.criteria import FinalResponseCriterion
from promptiter.evaluation.metrics.json_match import JsonCriterion
from promptiter.evaluation.metrics.metric import Metric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from promptiter.stages.contracts import AggregateResult, AttributeRequest, Attributor, SurfaceGradient
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from promptiter.structure import TEXT_TYPES
from traces.model import Json

NOTHING = json.dumps({"diagnosis": "?", "gradients": [], "packets": []})
FACTS = FinalResponseMetric(
    name="facts",
    criterion=FinalResponseCriterion(json=JsonCriterion(only_tree={"order": True, "days": True})),
    threshold=0.8,
)


def read_policy(category: str) -> dict[str, int]:
    """How many days a product of a category can be returned."""
    return {"days": 45 if category == "kettle" else 60}


def answer_as_task(request: ModelRequest) -> ModelReply:
    """The note has no order number, and the last node calls the tool only for kettles."""
    said = request.messages[-1].content
    if request.model == "extract":
        return ModelReply(text=f"A customer writes about the {said.split()[-1]} that was bought.")
    if request.model == "classify":
        return ModelReply(text="returns")
    if "kettle" in said and request.messages[-1].role == "user":
        return ModelReply(tool_requests=(ToolRequest(id="1", name="policy", arguments={"category": "kettle"}),))
    return ModelReply(text=json.dumps({"order": "unknown", "days": 45 if "45" in said else 30, "reply": "fine"}))


AGENT = GraphAgent(
    name="desk",
    nodes=(
        ModelNode(name="extract", instruction="Leave out numbers.", model="extract"),
        ModelNode(name="classify", instruction="Classify.", model="classify"),
        ModelNode(
            name="reply",
            instruction="Answer in JSON.",
            model="reply",
            prompt="Ticket note: {extract}\nClass: {classify}",
            tools=(
                Tool(
                    name="policy",
                    description="Opening hours.",
                    function=read_policy,
                    parameters={"type": "object", "properties": {"category": {"type": "string"}}},
                ),
            ),
        ),
        FunctionNode(name="send", function=lambda reply: reply),
    ),
    edges=(Edge("extract", "classify"), Edge("classify", "reply"), Edge("reply", "send")),
)


def make_case(number: int, product: str, days: int) -> EvalCase:
    expected = json.dumps({"order": f"KX-{number}", "days": days, "reply": "any"})
    return EvalCase(
        id=f"c{number}", turns=(Turn(user=f"Order KX-{number}: I return the {product}", expected=expected),)
    )


CASES = EvalSet(id="train", cases=(make_case(1, "kettle", 45), make_case(2, "drill", 60)))


Script: TypeAlias = Iterable[str] | Callable[[ModelRequest], str]


class Stage:
    """The attribution, and what its model was shown."""

    def __init__(self, *metrics: Metric, script: Script = lambda _: NOTHING, cases: EvalSet = CASES) -> None:
        self.cases = cases
        self.metrics = metrics or (FACTS,)
        self.model = ScriptedModel(script if callable(script) else list(script))
        models = {**dict.fromkeys(("extract", "classify", "reply"), ScriptedModel(answer_as_task)), "m": self.model}
        self.evaluator = Evaluator(self.metrics, gateway=Gateway(models=models))
        self.traces = JudgedTraces(())

    async def attribute(self, attributor: Attributor) -> tuple[TraceBlame, ...]:
        store, snapshot = self.evaluator.trace_store, AGENT.describe()
        evaluation = await self.evaluator.evaluate(AGENT, self.cases)
        losses = await extract_losses(evaluation, self.cases, store.get)
        self.traces = JudgedTraces(judge_traces(evaluation, self.cases, store.get, losses=losses))
        work = BackwardPass(
            structure=snapshot,
            profile=Profile.baseline(snapshot),
            targets=frozenset(each.id for each in snapshot.surfaces if each.type in TEXT_TYPES),
            traces=self.traces,
            redact=str,
        )
        with self.evaluator.gateway.active():
            return await work.attribute(losses, attributor)

    async def optimize(self, gradients: tuple[SurfaceGradient, ...]) -> str:
        """What the optimizer of the blamed surface is shown."""
        writer = PatchWriter(
            optimizer=LLMOptimizer("m"),
            structure=AGENT.describe(),
            profile=Profile.baseline(AGENT.describe()),
            traces=self.traces,
            linter=Linter(self.cases.cases),
            redact=str,
        )
        surface_id = gradients[0].surface_id
        signal = AggregateResult(surface_id=surface_id, text="as the gradients say")
        with self.evaluator.gateway.active():
            await writer.write([signal], {surface_id: gradients})
        return self.prompts[-1]

    @property
    def prompts(self) -> list[str]:
        """The first message of the user in each request; repairs repeat it."""
        return [
            next(each.content for each in request.messages if each.role == "user") for request in self.model.requests
        ]


def quote(name: str, text: str) -> str:
    return f'<data name="{name}">\n{text}\n</data>'


async def test_a_walk_offers_the_steps_that_were_read_and_names_where_a_packet_comes_from() -> None:
    lacking = "the note that reply was given lacks the number"
    packet = {"predecessor": "P1", "findings": ["F2"], "text": lacking}

    def blame_note(request: ModelRequest) -> str:
        is_reply = "# The step: node reply" in request.messages[1].content
        return json.dumps({"diagnosis": "", "gradients": [], "packets": [packet] if is_reply else []})

    stage = Stage(script=blame_note)
    await stage.attribute(StepwiseAttributor(LLMBackwarder("m")))
    [reply, *_] = [each for each in stage.prompts if "# The step: node reply (llm)\n" in each]
    [extract, *_] = [each for each in stage.prompts if "# The step: node extract (llm); its input is what" in each]
    assert quote("P2", "node classify\n\nreturns") in reply
    assert "Ticket note: [output of P1]\nClass: returns" in reply
    assert quote("from reply about F1", lacking) in extract
    assert "$.days" not in extract.partition("expected")[0]


async def test_in_a_walk_a_step_is_asked_and_blamed_only_for_the_findings_that_are_cited() -> None:
    def blame_note(request: ModelRequest) -> str:
        is_reply = "# The step: node reply" in request.messages[1].content
        packet = {"predecessor": "P1", "findings": ["F1"], "text": "the note lacks the number"}
        gradient = {"surface": "S2", "findings": ["F2"], "text": "Say what the tool does."}
        answer = {"gradients": [gradient], "packets": [packet]} if is_reply else {"gradients": [], "packets": []}
        return json.dumps({"diagnosis": "", **answer})

    stage = Stage(script=blame_note, cases=replace(CASES, cases=CASES.cases[1:]))
    [blame] = await stage.attribute(StepwiseAttributor(LLMBackwarder("m")))
    [gradient] = blame.gradients
    assert gradient.reasons == ("facts: json: expected 60, got 30 at $.days",)
    [extract] = [each for each in stage.prompts if "# The step: node extract" in each]
    assert quote("F1", "facts: json: expected 'KX-2', got 'unknown' at $.order") in extract
    assert "$.days" not in extract


async def test_a_tool_is_shown_with_its_arguments_docstring_and_a_result() -> None:
    stage = Stage()
    await stage.attribute(LLMAttributor("m"))
    [both] = stage.prompts
    arguments = '{"properties":{"category":{"type":"string"}},"type":"object"}'
    assert f"reply#tool.policy\narguments: {arguments}\ndocstring: How many days" in both
    assert 'policy({"category":"kettle"})\n{"days":45}' in both
    assert "a call seen elsewhere" not in both


async def test_a_tool_that_no_shown_run_called_is_shown_with_a_call_of_another_run() -> None:
    kettles = tuple(make_case(number, "kettle", 44) for number in range(1, MOST_RUNS + 1))
    stage = Stage(cases=replace(CASES, cases=(*kettles, make_case(99, "drill", 60))))
    await stage.attribute(LLMAttributor("m"))
    seen = 'a call seen elsewhere: policy({"category":"kettle"}) {"days":45}'
    assert [seen in each for each in stage.prompts] == ["return the drill" in each for each in stage.prompts]
    assert len(stage.prompts) == 2


async def test_a_walk_shows_a_call_of_another_run_only_where_the_tool_was_not_called() -> None:
    stage = Stage()
    await stage.attribute(StepwiseAttributor(LLMBackwarder("m")))
    replies = [each for each in stage.prompts if "# The step: node reply" in each]
    seen = 'a call seen elsewhere: policy({"category":"kettle"}) {"days":45}'
    assert [seen in each for each in replies] == ["return the drill" in each for each in replies] != [False, False]


async def test_what_the_metrics_look_at_is_shown_once_and_reports_claim_no_severity() -> None:
    stage = Stage()
    await stage.attribute(LLMAttributor("m"))
    [prompt] = stage.prompts
    assert prompt.count("facts: JSON, only order, days; passes at 0.8") == 1
    assert quote("F1", "facts: json: expected 'KX-1', got 'unknown' at $.order") in prompt
    assert "P0" not in prompt


async def test_reasons_of_metrics_reach_blame_and_optimizer_but_only_the_findings_that_blame_cites() -> None:
    remark = FunctionMetric(name="remark", function=lambda _case, _run: (0.0, "ZZREASON: a friendlier tone"))
    gradient = {"step": "T1", "surface": "S2", "findings": ["F1"], "text": "Keep order numbers."}
    stage = Stage(FACTS, remark, script=[json.dumps({"diagnosis": "", "gradients": [gradient]}), NOTHING, *["{}"] * 9])
    blames = await stage.attribute(LLMAttributor("m"))
    assert "ZZREASON" in stage.prompts[0]
    [found] = [gradient for blame in blames for gradient in blame.gradients]
    assert found.reasons == ("facts: json: expected 'KX-1', got 'unknown' at $.order",)
    shown = await stage.optimize((found,))
    assert quote("why it failed", found.reasons[0]) in shown
    assert "ZZREASON" not in shown
    assert '"days": 45' in shown.partition("answer of the whole run")[2]
    assert "its node reads: what the user said\nthe output of its node is: read by classify, reply" in shown
    whole = await stage.optimize((replace(found, reasons=(), findings=()),))
    assert "ZZREASON" in whole


async def test_the_optimizer_of_a_tool_sees_what_it_takes_and_returns() -> None:
    stage = Stage()
    await stage.attribute(LLMAttributor("m"))
    gradient = SurfaceGradient(surface_id="reply#tool.policy", case_id="c2", step_id="reply", text="Say what it does.")
    shown = await stage.optimize((gradient,))
    assert '"properties":{"category":{"type":"string"}}' in shown
    assert "docstring: How many days" in shown
    assert '{"arguments":{"category":"kettle"},"name":"policy","result":{"days":45}}' in shown


async def test_texts_are_shown_once_and_steps_that_change_nothing_share_a_heading() -> None:
    stage = Stage()
    await stage.attribute(LLMAttributor("m"))
    [prompt] = stage.prompts
    assert prompt.count("A customer writes about the kettle") == 1
    assert "## T4 function send: returned the output of T3 unchanged\n" in prompt
    assert "## T1 extract (S2): read what the user said\n" in prompt


@pytest.mark.parametrize(("count", "calls"), [(MOST_RUNS, 1), (MOST_RUNS + 1, 2)])
async def test_traces_share_prompts_and_each_answer_goes_to_its_own_run(count: int, calls: int) -> None:
    def blame_all(request: ModelRequest) -> str:
        shown = request.messages[1].content
        steps = [line.split()[1] for line in shown.splitlines() if " extract (S2)" in line]
        findings = [f"F{2 * number + 1}" for number in range(len(steps))]
        gradients = [
            {"step": step, "surface": "S2", "findings": [finding], "text": "Keep numbers."}
            for step, finding in zip(steps, findings, strict=True)
        ]
        return json.dumps({"diagnosis": "", "gradients": gradients})

    cases = replace(CASES, cases=tuple(make_case(number, "drill", 60) for number in range(1, count + 1)))
    stage = Stage(cases=cases)
    stage.evaluator.gateway.add_model("blamer", ScriptedModel(blame_all))
    blames = await stage.attribute(LLMAttributor("blamer"))
    assert len(blames) == count
    for blame in blames:
        [gradient] = blame.gradients
        assert gradient.case_id == blame.case_id
        assert f"KX-{blame.case_id.removeprefix('c')}'" in gradient.reasons[0] or "60" in gradient.reasons[0]
    spent = stage.evaluator.gateway.ledger.snapshot().by_role()["backwarder"]
    assert spent.calls == calls


async def test_traces_without_a_usable_answer_together_are_asked_about_alone() -> None:
    def refuse_many(request: ModelRequest) -> str:
        if "# Run 2" in request.messages[1].content:
            raise BadRequestError("too long")
        if "KX-2" in request.messages[1].content:
            raise BadRequestError("still too long")
        return json.dumps({"diagnosis": "", "gradients": [{"step": "T1", "surface": "S2", "text": "Keep numbers."}]})

    stage = Stage()
    stage.evaluator.gateway.add_model("blamer", ScriptedModel(refuse_many))
    first, second = await stage.attribute(LLMAttributor("blamer"))
    assert [gradient.text for gradient in first.gradients] == ["Keep numbers."]
    assert [result.error for result in second.results] == ["BadRequestError: still too long"]


async def test_an_attributor_of_batches_that_fails_or_answers_too_little_fails_for_its_traces() -> None:
    class Short:
        async def attribute(self, request: AttributeRequest) -> list[Json]:
            raise AssertionError(request.case_loss.case_id)

        async def attribute_batch(self, requests: list[AttributeRequest]) -> list[list[Json]]:
            return [[]] * (len(requests) - 1)

    blames = await Stage().attribute(Short())
    assert len(blames) == 2
    assert all("for 2 traces; return a list of BackwardResult for each" in (blame.error or "") for blame in blames)


class RecordingOptimizer:
    """Writes nothing, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[OptimizeRequest] = []

    def optimize(self, request: OptimizeRequest) -> PatchResult:
        self.requests.append(request)
        return PatchResult(patch=None, reason="only asked")


async def test_an_optimizer_sees_which_siblings_are_edited_at_the_same_time_and_why() -> None:
    optimizer = RecordingOptimizer()
    writer = PatchWriter(
        optimizer=optimizer,
        structure=AGENT.describe(),
        profile=Profile.baseline(AGENT.describe()),
        traces=JudgedTraces(()),
        linter=Linter(()),
        redact=str,
    )
    texts = {"extract#instruction": "keep numbers", "reply#instruction": "be exact", "reply#tool.policy": "say days"}
    signals = [AggregateResult(surface_id=surface_id, text=text) for surface_id, text in texts.items()]
    await writer.write(signals, dict.fromkeys(texts, ()))
    assert {each.surface.id: dict(each.edited_siblings) for each in optimizer.requests} == {
        "extract#instruction": {},
        "reply#instruction": {"reply#tool.policy": "say days"},
        "reply#tool.policy": {"reply#instruction": "be exact"},
    }
