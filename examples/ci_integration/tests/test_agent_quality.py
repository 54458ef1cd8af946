"""The gate of pull requests: the metrics of optimizer.json on the validation cases."""

from collections.abc import Callable
from typing import Any

AGENT = {
    "call": "agent.agent:call_agent",
    "prompts": {"system_prompt": {"place": "agent/prompts/system.md"}},
    "in_place": True,
}


def test_agent_quality(promptiter_evaluate: Callable[..., Any]) -> None:
    promptiter_evaluate("optimizer.json", eval_set="data/val.jsonl", settings={"agent": AGENT}, min_pass_rate=0.9)
