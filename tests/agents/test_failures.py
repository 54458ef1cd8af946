from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from promptiter.agents.base import to_answer
from promptiter.agents.failures import describe_error
from promptiter.errors import AgentError
from promptiter.wording import path_from_here


def parse(answer: str) -> object:
    return json.loads(answer)


def test_the_line_is_that_of_the_users_code_and_not_of_a_library() -> None:
    with pytest.raises(ValueError, match="Expecting value") as raised:
        parse("no")
    failure = describe_error(raised.value)
    line = inspect.getsourcelines(parse)[1] + 1
    assert failure.where == f"{path_from_here(Path(__file__))}:{line}"
    assert str(failure) == f"JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({failure.where})"


def test_code_without_a_file_has_a_line() -> None:
    with pytest.raises(KeyError) as raised:
        exec(compile("\n{}['city']", "<stdin>", "exec"))
    assert describe_error(raised.value).where == "<stdin>:2"


def test_an_error_of_promptiter_has_no_line() -> None:
    with pytest.raises(AgentError) as raised:
        to_answer(None, name="bot")
    assert describe_error(raised.value).where == ""
