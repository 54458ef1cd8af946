from __future__ import annotations

import pytest

from promptiter.errors import BudgetEndedError
from promptiter.llm.messages import CallSite, EmbeddingRequest, Message, MessageRole, ModelRequest, RichMessage
from promptiter.tasks.refine.budget import IterationBudget
from promptiter.tasks.refine.iteration_guard import IterationGuard, NodeRoles
from promptiter.tasks.refine.records import ModelPair

ROLES = NodeRoles(managers=("boss",), workers=("clerk",), prefix_node="boss")
SITE = CallSite(step_id="endpoint/0/boss")


def request(*texts: str) -> ModelRequest:
    roles: tuple[MessageRole, ...] = ("system", "user", "assistant", "user", "assistant")
    return ModelRequest(model="m", messages=tuple(Message(*each) for each in zip(roles, texts, strict=False)))


def guard(budget: IterationBudget | None = None, models: ModelPair | None = None) -> IterationGuard:
    return IterationGuard(
        ROLES, prefix="PREFIX ", budget=budget or IterationBudget(), models=models or ModelPair(manager="big")
    )


def texts(revised: ModelRequest) -> list[str]:
    return [message.content for message in revised.messages]


def test_calls_of_a_black_box_are_one_step_as_long_as_they_continue_it() -> None:
    watching = guard()
    assert texts(watching.revise_request(request("be", "go"), SITE, "boss")) == ["be", "PREFIX go"]
    later = watching.revise_request(request("be", "go", "calling", "found"), SITE, "boss")
    assert texts(later) == ["be", "PREFIX go", "calling", "found"]
    assert texts(watching.revise_request(request("be", "go"), SITE, "boss")) == ["be", "go"]  # the next loop
    assert texts(watching.revise_request(request("be", "other"), SITE, "boss")) == ["be", "other"]
    assert watching.use.loops == 3


def test_other_nodes_do_not_see_the_prefix() -> None:
    watching = guard(models=ModelPair(manager="big", worker="small"))
    clerk = watching.revise_request(request("be", "go"), SITE, "clerk")
    assert (texts(clerk), clerk.model) == (["be", "go"], "small")
    other = watching.revise_request(request("be", "go"), SITE, "printer")
    assert (texts(other), other.model) == (["be", "go"], "m")
    assert watching.revise_request(request("be", "go"), SITE, "boss").model == "big"
    assert (watching.use.loops, watching.use.workers) == (1, 1)


def test_a_call_that_names_no_node_is_of_the_one_that_is_found_for_it() -> None:
    watching = IterationGuard(
        ROLES,
        prefix="PREFIX ",
        budget=IterationBudget(),
        models=ModelPair(),
        find_node=lambda asked, _: "boss" if asked.messages[0].content == "lead" else None,
    )
    assert texts(watching.revise_request(request("write", "go"), SITE, "")) == ["write", "go"]
    assert watching.is_prefix_missed
    assert texts(watching.revise_request(request("lead", "go"), SITE, "")) == ["lead", "PREFIX go"]
    assert texts(watching.revise_request(request("lead", "go"), SITE, "clerk")) == ["lead", "go"]
    assert not watching.is_prefix_missed
    assert (watching.use.loops, watching.use.workers) == (1, 1)  # without a role, a node is not counted


def test_the_prefix_comes_before_the_last_message_of_the_user() -> None:
    with_examples = request("be", "example", "its answer", "the task")
    assert texts(guard().revise_request(with_examples, SITE, "boss"))[-1] == "PREFIX the task"
    without_user = ModelRequest(model="m", messages=(Message("system", "be"),))
    assert texts(guard().revise_request(without_user, SITE, "boss")) == ["be", "PREFIX"]


def test_messages_with_parts_get_one_more() -> None:
    rich = RichMessage("user", "look", extra={"content": [{"type": "image_url", "image_url": {"url": "u"}}]})
    [message] = guard().revise_request(ModelRequest(model="m", messages=(rich,)), SITE, "boss").messages
    assert isinstance(message, RichMessage)
    assert message.extra["content"][0] == {"type": "text", "text": "PREFIX "}
    assert len(message.extra["content"]) == 2


def test_embeddings_are_left_as_they_are() -> None:
    watching = guard()
    embedding = EmbeddingRequest(model="e", messages=(Message("user", "text"),))
    assert watching.revise_request(embedding, SITE, "boss") is embedding
    assert watching.use.loops == 0


def test_steps_and_tool_calls_beyond_the_budget_are_refused() -> None:
    watching = guard(IterationBudget(max_loops=1, max_total_workers=1, max_tool_calls=1))
    watching.revise_request(request("be", "go"), SITE, "boss")
    watching.revise_request(request("be", "go", "calling", "found"), SITE, "boss")
    with pytest.raises(
        BudgetEndedError, match=r"steps of the manager: the cap of this iteration is 1.*refine\.floors\.loops"
    ):
        watching.revise_request(request("be", "again"), SITE, "boss")
    watching.revise_request(request("be", "go"), SITE, "clerk")
    with pytest.raises(BudgetEndedError) as ended:
        watching.revise_request(request("be", "again"), SITE, "clerk")
    assert ended.value.cap == "max_total_workers"
    watching.check_tool_call("node:cached", SITE, "boss")
    watching.check_tool_call("search", SITE, "boss")
    with pytest.raises(BudgetEndedError, match=r"refine\.floors\.tool_calls"):
        watching.check_tool_call("search", SITE, "boss")
