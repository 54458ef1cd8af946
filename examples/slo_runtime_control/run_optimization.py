"""All six stop conditions at once. The first that holds ends the search, and `stop_reason` says which one it was."""

import asyncio
import json
from pathlib import Path
from typing import Any

from promptiter import TargetPrompt, optimize

HERE = Path(__file__).parent
PROMPT = HERE / "prompts" / "system.md"
TIGHT: dict[str, dict[str, Any]] = {
    "as configured": {},
    "a short night": {"timeout_seconds": 0.001, "score_threshold": None},
    "a small quota": {"max_metric_calls": 16},
    "few proposals": {"max_candidate_proposals": 1, "score_threshold": None},
    "few candidates": {"max_tracked_candidates": 2, "score_threshold": None},
}


async def call_agent(query: str) -> str:
    fields = query.partition("(")[2].rstrip(")").split("; ")  # in place of a model
    named = [each for each in fields if each.partition(":")[0] in PROMPT.read_text()]
    return f"Your parcel is on its way. {', '.join(named)}"


async def run(name: str, changes: dict[str, Any]) -> None:
    document = json.loads((HERE / "optimizer.json").read_text())
    document["optimize"]["algorithm"] |= changes
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
    )
    print(f"{name:<15} {result.stop_reason:<24} {result.total_metric_calls:>2} metric calls")


for each, settings in TIGHT.items():
    asyncio.run(run(each, settings))
