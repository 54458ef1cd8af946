"""The job of the night: an improvement is written to the prompt files."""

import asyncio
from datetime import datetime
from pathlib import Path

from agent.agent import PROMPT, call_agent

from promptiter import TargetPrompt, optimize

HERE = Path(__file__).parent
result = asyncio.run(
    optimize(
        config_path=HERE / "optimizer.json",
        call_agent=call_agent,
        target_prompt=TargetPrompt().add_path("system_prompt", PROMPT),
        train_dataset_path=HERE / "data" / "train.jsonl",
        validation_dataset_path=HERE / "data" / "val.jsonl",
        output_dir=HERE / "runs" / datetime.now().strftime("optimize_%Y-%m-%dT%H-%M-%S"),
        update_source=True,
        verbose=0,
    )
)
print(f"nightly run: {result.status}, pass rate {result.baseline_pass_rate:.0%} -> {result.best_pass_rate:.0%}")
