"""Optimizes the prompts of both sub-agents together. Changing only one of them does not help."""

import asyncio
from pathlib import Path

from pipeline import PROMPTS, call_agent

from promptiter import TargetPrompt, optimize

HERE = Path(__file__).parent
target = TargetPrompt().add_path("collector", PROMPTS / "collector.md").add_path("writer", PROMPTS / "writer.md")
result = asyncio.run(
    optimize(
        config_path=HERE / "optimizer.json",
        call_agent=call_agent,
        target_prompt=target,
        train_dataset_path=HERE / "train.jsonl",
        validation_dataset_path=HERE / "val.jsonl",
        output_dir=HERE / "runs" / "latest",
        verbose=0,
    )
)
print(f"pass rate {result.baseline_pass_rate:.0%} -> {result.best_pass_rate:.0%}, {result.stop_reason}")
for name, text in result.best_prompts.items():
    print(f"{name}: {text.strip()}")
