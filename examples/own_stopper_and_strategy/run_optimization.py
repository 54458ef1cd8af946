"""What AgentOptimizer's users extend: a stop condition, a callback of gepa, and a search algorithm of their own."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from promptiter import TargetPrompt, optimize

HERE = Path(__file__).parent
PROMPT = HERE / "prompts" / "system.md"
sys.path.append(str(HERE))  # optimizer.json names the search as strategy:TrySentences


class SloMonitor:
    """Stops the search when the service it calls is in trouble. The label is the stop reason."""

    label = "slo_breach"

    def __init__(self, breached_after: int) -> None:
        self.checks = 0
        self.breached_after = breached_after

    def __call__(self, gepa_state: Any = None) -> bool:  # noqa: ARG002
        self.checks += 1
        return self.checks > self.breached_after


class Dashboard:
    """Gets the events of gepa. Methods that it does not have are not called."""

    def __init__(self) -> None:
        self.iterations = 0

    def on_iteration_start(self, event: Any) -> None:  # noqa: ARG002
        self.iterations += 1


async def call_agent(query: str) -> str:
    fields = query.partition("(")[2].rstrip(")").split("; ")  # in place of a model
    named = [each for each in fields if each.partition(":")[0] in PROMPT.read_text()]
    return f"Your parcel is on its way. {', '.join(named)}"


async def run(name: str, algorithm: dict[str, Any] | None = None, **extensions: Any) -> None:
    document = json.loads((HERE / "optimizer.json").read_text())
    document["optimize"]["algorithm"] = algorithm or document["optimize"]["algorithm"]
    config = HERE / "runs" / f"{name}.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps(document))
    result = await optimize(
        config_path=config,
        call_agent=call_agent,
        target_prompt=TargetPrompt().add_path("system_prompt", PROMPT),
        train_dataset_path=HERE / "train.jsonl",
        validation_dataset_path=HERE / "val.jsonl",
        output_dir=HERE / "runs" / name,
        verbose=0,
        **extensions,
    )
    print(f"{name}: {result.stop_reason}, pass rate {result.best_pass_rate:.0%} after {result.total_rounds} rounds")


async def main() -> None:
    dashboard = Dashboard()
    await run("stopper", extra_stop_callbacks=[SloMonitor(breached_after=0)])
    await run("callback", extra_gepa_callbacks=[dashboard])
    print(f"the dashboard saw {dashboard.iterations} iteration")
    await run("strategy", {"name": "strategy:TrySentences", "limit": 3, "max_metric_calls": 60})


asyncio.run(main())
