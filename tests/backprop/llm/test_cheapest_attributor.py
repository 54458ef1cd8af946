from __future__ import annotations

import json
import re
from dataclasses import replace

from promptiter.backprop.llm.attributor import CUT_SURFACE, LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.backprop.llm.shown_run import MOST_STEPS
from promptiter.backprop.llm.trace_prompt import RULE_TOKENS
from promptiter.backprop.llm.truncation import count_prompt_tokens
from promptiter.errors import BadRequestError, RateLimitedError
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.retries import Retries
from promptiter.stages.contracts import AttributeRequest, Attributor, BackwardRequest
from tests.backprop.llm.test_trace_prompt import chain
from tests.backprop.test_propagate import request_of, step
from traces import Snapshot

NOTHING_IN_IT = json.dumps({"diagnosis": "?", "gradients": []})
NOTHING_HERE = json.dumps({"diagnosis": "?", "gradients": [], "packets": []})


def cheapest(model: ScriptedModel | None = None, *, whole_limit: int | None = None) -> CheapestAttributor:
    """Any call of its model is an error, unless it is given one."""
    gateway = Gateway(models={"m": model or ScriptedModel([])}, retries=Retries(attempts=1))
    whole = LLMAttributor("m", gateway=gateway, max_prompt_tokens=whole_limit)
    return CheapestAttributor(whole, LLMBackwarder("m", gateway=gateway))


def with_outputs(request: AttributeRequest, output: str) -> AttributeRequest:
    steps = tuple(replace(each, output=Snapshot(f"{each.id}: {output}")) for each in request.trace.steps)
    return replace(request, trace=replace(request.trace, steps=steps))


def test_a_chain_of_short_steps_is_shown_whole() -> None:
    choice = cheapest().choose(chain(10))
    assert choice.how == "whole_trace"
    assert re.fullmatch(r"whole trace: [\d,]+ tokens expected, [\d,]+ in 5\.5 calls for a walk", choice.reason)


def test_a_single_step_is_walked() -> None:
    choice = cheapest().choose(chain(1))
    assert choice.how == "walk"
    assert "in 1.0 calls" in choice.reason


def test_steps_that_pass_their_packets_on_cost_a_walk_nothing() -> None:
    """One step may be blamed, before many that only pass packets on: a walk asks one question."""
    steps = [step("writer"), *(step(f"f{n}", f"f{n - 1}" if n else "writer", reads=[]) for n in range(20))]
    choice = cheapest().choose(request_of(steps))
    assert (choice.how, "in 1.0 calls" in choice.reason) == ("walk", True)


def test_a_wide_trace_is_walked_because_a_walk_goes_into_one_branch_only() -> None:
    heads = [step(f"h{number}") for number in range(12)]
    branches = [step(f"b{number}", f"h{number}") for number in range(12)]
    request = request_of([*heads, *branches, step("join", *(each.id for each in branches))])
    choice = cheapest().choose(with_outputs(request, "word " * 400))
    assert (choice.how, "in 2.4 calls" in choice.reason) == ("walk", True)


def test_a_trace_that_does_not_fit_is_walked() -> None:
    request = with_outputs(chain(20), "word " * 900)
    assert cheapest(whole_limit=60_000).choose(request).how == "whole_trace"
    choice = cheapest(whole_limit=12_000).choose(request)
    assert choice.how == "walk"
    assert choice.reason == "walked: the whole trace does not fit into 12,000 tokens"
    assert cheapest(whole_limit=10**9).choose(chain(MOST_STEPS + 1)).how == "walk"


async def test_traces_that_share_a_long_surface_share_a_prompt_that_shows_it_once() -> None:
    long = "\n".join(f"Section {number}: a rule of the house." for number in range(4_000))
    request = request_of([step("writer")], writer=long)
    model = ScriptedModel([NOTHING_IN_IT])
    stage = cheapest(model)
    assert stage.choose(request).how == "walk"
    await stage.attribute_batch([request] * 8)
    [asked] = model.requests
    assert [asked.text.count(line) for line in ("Section 0:", "Section 3999:")] == [1, 1]
    assert asked.text.count("# Run ") == 8
    assert count_prompt_tokens([asked.text]) < CUT_SURFACE + 8 * 300 + RULE_TOKENS


def test_without_blamable_surfaces_nothing_is_compared() -> None:
    assert cheapest().choose(replace(chain(3), targets=frozenset())).how == "walk"


def test_custom_prompts_are_counted_as_they_are() -> None:
    def long(_: AttributeRequest) -> tuple[Message, ...]:
        return (Message("user", "word " * 10_000),)

    def short(_: BackwardRequest) -> tuple[Message, ...]:
        return (Message("user", "Who?"),)

    gateway = Gateway(models={"m": ScriptedModel([])})
    whole, own_whole = LLMAttributor("m", gateway=gateway), LLMAttributor("m", gateway=gateway, render=long)
    backwarder, own_step = LLMBackwarder("m", gateway=gateway), LLMBackwarder("m", gateway=gateway, render=short)
    hows = [CheapestAttributor(*pair).choose(chain(10)).how for pair in ((own_whole, backwarder), (whole, own_step))]
    assert hows == ["walk", "walk"]


async def test_the_chosen_method_is_used_and_noted() -> None:
    model = ScriptedModel([NOTHING_IN_IT])
    stage = cheapest(model)
    assert isinstance(stage, Attributor)
    results = await stage.attribute(chain(10))
    assert len(model.requests) == 1
    assert results[0].note.startswith("whole trace: ")

    model = ScriptedModel([NOTHING_HERE])
    walked = await cheapest(model, whole_limit=2_000).attribute(with_outputs(chain(3), "word " * 2_000))
    assert len(model.requests) == 1
    assert [result.note for result in walked] == ["walked: the whole trace does not fit into 2,000 tokens"]


def is_whole(request: ModelRequest) -> bool:
    return "You see failed runs" in request.messages[0].content


async def test_a_trace_that_the_model_cannot_answer_about_in_one_call_is_walked() -> None:
    def answers(request: ModelRequest) -> str:
        return "I do not know." if is_whole(request) else NOTHING_HERE

    model = ScriptedModel(answers)
    (result,) = await cheapest(model).attribute(chain(10))
    assert result.note == "walked: the model gave no usable answer about the whole trace (BadAnswerError)"
    assert [is_whole(request) for request in model.requests] == [True] * 4 + [False]


async def test_a_model_that_never_answers_with_json_does_not_walk_every_trace() -> None:
    model = ScriptedModel(lambda _: "I do not know.")
    requests = [with_outputs(chain(10), f"Answer {number}.") for number in range(6)]
    found = await cheapest(model).attribute_batch(requests)
    assert [is_whole(request) for request in model.requests] == [True] * 12 + [False] * 4
    assert all("the last one is 'I do not know.'" in (result.error or "") for [result] in found)


async def test_a_trace_that_the_model_finds_too_long_is_walked() -> None:
    def answers(request: ModelRequest) -> ModelReply | str:
        if is_whole(request):
            raise BadRequestError("ContextWindowExceededError: too long")
        return NOTHING_HERE

    (result,) = await cheapest(ScriptedModel(answers)).attribute(chain(10))
    assert result.note == "walked: the model gave no usable answer about the whole trace (BadRequestError)"


async def test_an_unavailable_model_is_not_asked_again_step_by_step() -> None:
    def answers(_: ModelRequest) -> str:
        raise RateLimitedError("not now")

    model = ScriptedModel(answers)
    [result] = await cheapest(model).attribute(chain(10))
    assert (result.error or "").startswith("RateLimitedError")
    assert len(model.requests) == 1
