"""Several metrics at once: two judges must agree on the answer, and a third one looks at the style."""

import asyncio
import sys
from pathlib import Path

from promptiter import TargetPrompt, optimize

HERE = Path(__file__).parent
PROMPT = HERE / "prompts" / "system.md"
sys.path.append(str(HERE))  # optimizer.json names its judges as judges:strict and so on


async def call_agent(query: str) -> str:
    fields = query.partition("(")[2].rstrip(")").split("; ")  # in place of a model
    named = [each for each in fields if each.partition(":")[0] in PROMPT.read_text()]
    return f"Your parcel is on its way. {', '.join(named)}"


result = asyncio.run(
    optimize(
        config_path=HERE / "optimizer.json",
        call_agent=call_agent,
        target_prompt=TargetPrompt().add_path("system_prompt", PROMPT),
        train_dataset_path=HERE / "train.jsonl",
        validation_dataset_path=HERE / "val.jsonl",
        output_dir=HERE / "runs" / "latest",
        verbose=0,
    )
)
print(f"pass rate {result.baseline_pass_rate:.0%} -> {result.best_pass_rate:.0%}, {result.stop_reason}")
for name, threshold in result.metric_thresholds.items():
    before, after = result.baseline_metric_breakdown[name], result.best_metric_breakdown[name]
    print(f"{name}: {before:.2f} -> {after:.2f}, threshold {threshold:g}")
