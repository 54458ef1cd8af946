"""The three parts of an optimization: call_agent, the prompts that may change, and the call of `optimize`."""

import asyncio
from datetime import datetime
from pathlib import Path

from agent import PROMPTS, call_agent

from promptiter import TargetPrompt, optimize

HERE = Path(__file__).parent
target = (
    TargetPrompt()
    .add_path("system_prompt", PROMPTS / "system.md")
    .add_path("skill", PROMPTS / "skill.md")
)  # fmt: skip
result = asyncio.run(
    optimize(
        config_path=HERE / "optimizer.json",
        call_agent=call_agent,
        target_prompt=target,
        train_dataset_path=HERE / "train.evalset.json",
        validation_dataset_path=HERE / "val.evalset.json",
        output_dir=HERE / "runs" / datetime.now().strftime("%Y-%m-%dT%H-%M-%S"),
        update_source=False,
        verbose=0,
    )
)
print(result.status, f"{result.baseline_pass_rate:.0%} -> {result.best_pass_rate:.0%}", result.stop_reason)
for name, text in result.best_prompts.items():
    print(f"{name}: {text.strip()}")
