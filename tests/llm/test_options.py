"""Options that cannot work are refused when a node, a stage or a configuration is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from promptiter.agents.declarations import Parameter
from promptiter.agents.function import ask
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.config.file import read_document
from promptiter.errors import SetupError
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import Message, ModelRequest
from promptiter.llm.options import RESERVED_OPTIONS, check_options


def make_node(options: Mapping[str, Any]) -> object:
    return ModelNode(name="clerk", instruction="Answer.", options=options)


def make_tuned_node(options: Mapping[str, Any]) -> object:
    parameters = {name: Parameter(value=value) for name, value in options.items()}
    return ModelNode(name="clerk", instruction="Answer.", parameters=parameters)


def make_stage(options: Mapping[str, Any]) -> object:
    return LLMOptimizer("gpt-5", model_options=options)


def read_settings(options: Mapping[str, Any]) -> object:
    parsed = read_document({"models": {"gpt-5": {"options": options}}}, file=Path("promptiter.yaml"), settings={})
    if problems := [each for each in parsed.problems if "gpt-5" in each]:
        raise SetupError(problems[0])
    return parsed


MAKERS: list[Callable[[Mapping[str, Any]], object]] = [make_node, make_tuned_node, make_stage, read_settings]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", RESERVED_OPTIONS)
def test_an_option_that_cannot_work_is_refused_with_what_to_do(
    make: Callable[[Mapping[str, Any]], object], name: str
) -> None:
    with pytest.raises(SetupError, match=f"have '{name}', which cannot be an option: {RESERVED_OPTIONS[name]}"):
        make({name: 2})


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_tokens": "50"}, "have 'max_tokens', which is '50'; give a whole number of at least 1"),
        ({"max_tokens": -5}, "have 'max_tokens', which is -5"),
        ({"max_completion_tokens": 2.5}, "have 'max_completion_tokens', which is 2.5"),
        ({"max_tokens": True}, "have 'max_tokens', which is True"),
        ({"timeout": "abc"}, "have 'timeout', which is 'abc'; give seconds, a number above 0"),
        ({"timeout": -1}, "have 'timeout', which is -1"),
        ({"temperature": "hot"}, "have 'temperature', which is 'hot'; give a number"),
        ({"extra_headers": "sk-1"}, "have 'extra_headers', which is of type .*; give texts by name"),
        ({"extra_headers": {"X-Desk": 5}}, "have 'extra_headers', which is of type dict"),
        ({"extra_body": [1]}, "have 'extra_body', which is of type list; give values by name"),
        ({"extra_body": {"max_tokens": 9_000}}, "have 'max_tokens', which cannot be part of extra_body: give it as an"),
        ({"extra_body": {"n": 8}}, "have 'n', which cannot be part of extra_body: a call has one answer"),
        ({"extra_body": {"stream": True}}, "have 'stream', which cannot be part of extra_body"),
    ],
)
def test_a_value_that_cannot_work_is_refused(
    make: Callable[[Mapping[str, Any]], object], options: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(SetupError, match=problem):
        make(options)


@pytest.mark.parametrize("make", MAKERS)
def test_other_options_are_accepted(make: Callable[[Mapping[str, Any]], object]) -> None:
    make({"temperature": 0.2, "timeout": 5, "extra_headers": {"X-Team": "a"}, "max_tokens": 100})
    make(
        {"extra_body": {"top_k": 5, "stream": False}, "max_completion_tokens": None, "n": 1, "thinking": {"type": "x"}}
    )


@pytest.mark.slow
async def test_requests_of_your_own_are_checked_before_they_are_sent() -> None:
    request = ModelRequest(model="openai/local", messages=(Message("user", "x"),), options={"api_key": "sk-x"})
    with pytest.raises(SetupError, match="the options of model 'openai/local' have 'api_key'"):
        await LiteLLMModel(api_base="http://127.0.0.1:9/v1")(request, repeat=0)


async def test_only_other_programs_may_ask_for_several_answers() -> None:
    with pytest.raises(SetupError, match="the options of ask\\(\\) have 'n'"):
        await ask("x", model="openai/local", options={"n": 2})
    check_options({"n": 2}, place="the body", allows_choices=True)
    for wrong in (0.5, "two", -1):
        with pytest.raises(SetupError, match="have 'n'"):
            check_options({"n": wrong}, place="the body", allows_choices=True)
