"""An agent that users of AgentOptimizer have: an async function that reads its prompts from files in each call.

It repeats those fields of a question that one of its prompts names, so a prompt that asks for the order id is right.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptiter import TargetPrompt

ORDERS = ("A-1042", "B-2077", "C-3010", "D-4455", "E-5120", "F-6001", "G-7317", "H-8240")
METRIC = {
    "metric_name": "final_response_avg_score",
    "threshold": 1.0,
    "criterion": {"final_response": {"text": {"match": "contains"}}},
}


@dataclass
class PromptBot:
    """The files of a project, its agent, and the queries that the agent got."""

    folder: Path
    queries: list[str] = field(default_factory=list)
    before_answer: Callable[[str], None] = lambda _: None

    @property
    def system(self) -> Path:
        return self.folder / "prompts" / "system.md"

    @property
    def skill(self) -> Path:
        return self.folder / "prompts" / "skill.md"

    @property
    def target(self) -> TargetPrompt:
        return TargetPrompt().add_path("system_prompt", str(self.system)).add_path("skill", str(self.skill))

    async def call_agent(self, query: str) -> str:
        self.queries.append(query)
        self.before_answer(query)
        prompts = self.system.read_text() + self.skill.read_text()
        fields = query.partition("(")[2].rstrip(")").split("; ")
        return f"Thank you! {', '.join(each for each in fields if each.partition(':')[0] in prompts)}"

    def write(self, **changes: Any) -> dict[str, Any]:
        """Write prompts, eval sets and optimizer.json, and return the arguments of `promptiter.optimize`."""
        self.system.parent.mkdir(exist_ok=True)
        self.system.write_text("Be polite.\n")
        self.skill.write_text("Answer in one line.\n")
        for name, orders in (("train", ORDERS[:4]), ("val", ORDERS[4:])):
            cases = [_case(f"{name}-{order}", order) for order in orders]
            (self.folder / f"{name}.evalset.json").write_text(json.dumps({"eval_set_id": name, "eval_cases": cases}))
        self.configure()
        call: Callable[[str], Awaitable[str]] = self.call_agent
        return {
            "config_path": str(self.folder / "optimizer.json"),
            "call_agent": call,
            "target_prompt": self.target,
            "train_dataset_path": str(self.folder / "train.evalset.json"),
            "validation_dataset_path": str(self.folder / "val.evalset.json"),
            "output_dir": str(self.folder / "out"),
            "verbose": 0,
            **changes,
        }

    def configure(self, *, stop: Any = None, metrics: Any = None, **algorithm: Any) -> None:
        """Write optimizer.json. The search is `backprop`, which needs no model, if no other is named."""
        given = {"name": "backprop", "max_metric_calls": 60, **algorithm}
        document = {
            "evaluate": {"metrics": metrics or [METRIC]},
            "optimize": {
                "stop": stop or {"required_metrics": "all"},
                "algorithm": {key: value for key, value in given.items() if value is not None},
            },
        }
        (self.folder / "optimizer.json").write_text(json.dumps(document))


def rewrite(messages: Any) -> str:
    """A reflection model that always has the same idea."""
    return json.dumps({"reason": "answers lack the order id", "value": "Always give the order id."})


GEPA: dict[str, Any] = {
    "name": "gepa_reflective",
    "reflection_lm": {"model_name": "tests.worlds.prompt_bot:rewrite"},
    "reflection_minibatch_size": 2,
}
"""The algorithm of an optimizer.json: gepa with that reflection model."""


def _case(case_id: str, order: str) -> dict[str, Any]:
    return {
        "eval_id": case_id,
        "conversation": [
            {
                "user_content": {"parts": [{"text": f"Where is my order? (order id: {order}; city: Lyon)"}]},
                "final_response": {"parts": [{"text": order}]},
            }
        ],
    }
