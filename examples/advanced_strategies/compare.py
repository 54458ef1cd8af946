"""Runs two configurations that differ in a few switches, and compares their results side by side."""

import asyncio
import json
from pathlib import Path
from typing import Any

from agent import PROMPTS, call_agent

from promptiter import TargetPrompt, optimize

HERE = Path(__file__).parent
ROWS = ("bestPassRate", "totalRounds", "roundsAccepted", "mergeRoundsTotal", "proposalsTotal", "stopReason")


async def run(name: str) -> dict[str, Any]:
    await optimize(
        config_path=HERE / f"optimizer_{name}.json",
        call_agent=call_agent,
        target_prompt=TargetPrompt()
        .add_path("collector", PROMPTS / "collector.md")
        .add_path("writer", PROMPTS / "writer.md"),
        train_dataset_path=HERE / "train.jsonl",
        validation_dataset_path=HERE / "val.jsonl",
        output_dir=HERE / "runs" / name,
        verbose=0,
    )
    result: dict[str, Any] = json.loads((HERE / "runs" / name / "result.json").read_text())
    return result


baseline, advanced = (asyncio.run(run(name)) for name in ("baseline", "advanced"))
print(f"{'':<17} {'baseline':<26} advanced")
for row in ROWS:
    print(f"{row:<17} {baseline[row]!s:<26} {advanced[row]}")
