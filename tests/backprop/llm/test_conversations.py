"""What models are shown of a case with several turns: the turn itself, what was said before, and its own reasons."""

from __future__ import annotations

import json

from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.backward_pass import BackwardPass
from promptiter.backprop.corrections import CorrectionRequest
from promptiter.backprop.judged_traces import JudgedTraces, judge_traces
from promptiter.backprop.lint import Linter
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.corrector import render_correction
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.patch_writing import PatchWriter
from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from promptiter.stages.contracts import AggregateResult, SurfaceGradient
from promptiter.stages.losses import CaseLoss
from traces import ExecutionTrace

AGENT = GraphAgent(
    name="office",
    nodes=(
        ModelNode(name="plan", instruction="Plan.", model="task"),
        ModelNode(name="talk", instruction="Answer.", model="task", prompt="Plan: {plan}"),
    ),
    edges=(Edge("plan", "talk"),),
)
CASES = EvalSet(
    id="train",
    cases=(
        EvalCase(
            id="c",
            turns=(
                Turn(user="When does my contract end?", expected="On May 3."),
                Turn(user="And sick leave?", expected="From the fourth day on."),
            ),
        ),
        EvalCase(
            id="passing",
            turns=(
                Turn(user="When is the next holiday?", expected="Soon, a holiday."),
                Turn(user="And the one after?", expected="Soon, another holiday."),
            ),
        ),
    ),
)
EARLIER = """<data name="earlier conversation">
user: When does my contract end?

assistant: Soon.
</data>
<data name="user">
And sick leave?
</data>"""


class Office:
    """The evaluated agent with a judge of each turn, and a model whose prompts are kept."""

    def __init__(self) -> None:
        self.stage = ScriptedModel(lambda _: json.dumps({"diagnosis": "?", "gradients": [], "packets": []}))
        models = {"task": ScriptedModel(lambda _: "Soon."), "judge": ScriptedModel(judge), "m": self.stage}
        gateway = Gateway(models=models)
        judged = {
            "metric_name": "llm_final_response",
            "criterion": {"llm_judge": {"judge_model": {"model_name": "judge"}}},
        }
        self.evaluator = Evaluator(build_metrics(parse_eval_config([judged]), gateway=gateway), gateway=gateway)

    async def fail(self) -> tuple[BackwardPass, tuple[CaseLoss, ...]]:
        store, structure = self.evaluator.trace_store, AGENT.describe()
        evaluation = await self.evaluator.evaluate(AGENT, CASES)
        losses = await extract_losses(evaluation, CASES, store.get)
        traces = JudgedTraces(judge_traces(evaluation, CASES, store.get, losses=losses))
        targets = frozenset(("plan#instruction", "talk#instruction"))
        profile = Profile.baseline(structure)
        work = BackwardPass(structure=structure, profile=profile, targets=targets, traces=traces, redact=str)
        return work, losses

    async def load(self, loss: CaseLoss) -> ExecutionTrace:
        return await self.evaluator.trace_store.get(loss.trace_digest)

    @property
    def prompts(self) -> list[str]:
        return [request.messages[1].content for request in self.stage.requests]


def judge(request: ModelRequest) -> ModelReply:
    if "holiday" in request.text:
        return ModelReply(text=json.dumps({"reason": "It is right.", "valid": True}))
    reason = "It says nothing of the fourth day." if "fourth day" in request.text else "It gives no date."
    return ModelReply(text=json.dumps({"reason": reason, "valid": False}))


async def test_a_whole_trace_is_shown_with_the_conversation_before_it_and_the_reason_of_its_turn() -> None:
    office = Office()
    work, losses = await office.fail()
    with office.evaluator.gateway.active():
        await work.attribute(losses, LLMAttributor("m"))
    [prompt] = office.prompts
    first, second = prompt.split("# Run 2")
    assert "earlier conversation" not in first
    assert EARLIER in second
    assert "invalid: It gives no date.\n</data>" in first
    assert "invalid: It says nothing of the fourth day.\n</data>" in second
    assert "gives no date" not in second


async def test_a_walk_shows_the_conversation_before_a_turn_and_the_reason_of_the_turn() -> None:
    office = Office()
    work, losses = await office.fail()
    with office.evaluator.gateway.active():
        await work.attribute(losses, StepwiseAttributor(LLMBackwarder("m")))
    for prompt in office.prompts:
        assert (EARLIER in prompt) == ("And sick leave?" in prompt) == ("the fourth day.\n" in prompt)
        assert ("gives no date" in prompt) == (EARLIER not in prompt)


async def test_optimizer_and_corrector_see_the_conversation_before_a_turn() -> None:
    office = Office()
    work, losses = await office.fail()
    gradient = SurfaceGradient(surface_id="plan#instruction", case_id="c", step_id="plan", text="Plan better.", turn=1)
    writer = PatchWriter(
        optimizer=LLMOptimizer("m"),
        structure=work.structure,
        profile=work.profile,
        traces=work.traces,
        linter=Linter(CASES.cases),
        redact=str,
    )
    signal = AggregateResult(surface_id=gradient.surface_id, text="Plan better.")
    trace = await office.load(losses[1])
    request = CorrectionRequest(case_loss=losses[1], trace=trace, step=trace.steps[0], gradients=(gradient,))
    with office.evaluator.gateway.active():
        await writer.write([signal], {gradient.surface_id: (gradient,)})
    failing, passing = office.prompts[0].split("# Passing example 1")
    assert EARLIER.partition('\n<data name="user')[0] in failing
    assert "user: When is the next holiday?\n\nassistant: Soon.\n</data>" in passing
    assert EARLIER in render_correction(request)[1].content
