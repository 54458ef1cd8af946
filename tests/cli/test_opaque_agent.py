"""An agent that calls its models itself, under a budget: each command that measures says that it is not limited."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_noise import in_file

OPAQUE = """
from promptiter.agents import agent, surface

@agent(instruction="Answer.")
def agent(message: str) -> str:
    return surface("instruction")  # as an answer of its own client
"""
WARNING = "warning: the budget does not limit the agent: it made no model or tool call through promptiter"
COMMANDS = (
    (("noise", "--repeats", "2", "--quiet"), 0),
    (("run", "--max-rounds", "0", "--quiet"), 0),
    (("try", "--quiet"), 0),
    (("try", "--set", "agent#instruction=Reply.", "--quiet"), 4),
    (("evaluate", "agent:agent", "--eval-set", "data/validation.jsonl", "--metrics", "metrics.json"), 1),
)


@pytest.mark.parametrize(("command", "code"), COMMANDS)
@pytest.mark.parametrize("max_calls", [None, 500])
def test_a_budget_that_does_not_limit_the_agent_is_said(
    run: Run, desk: Path, command: tuple[str, ...], code: int, max_calls: int | None
) -> None:
    (desk / "agent.py").write_text(OPAQUE)
    in_file(desk, budget={"max_calls": max_calls})
    assert run(*command, code=code, stream="err").count(WARNING) == (max_calls is not None)
