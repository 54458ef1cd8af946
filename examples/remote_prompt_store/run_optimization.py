"""Optimizes a prompt in a remote store. Candidates go to a key of the sandbox; production waits for approval."""

import asyncio
from pathlib import Path

from prompt_client import get, put, read_prompt, write_prompt

from promptiter import TargetPrompt, optimize

HERE = Path(__file__).parent


async def call_agent(query: str) -> str:
    prompt = await read_prompt()  # now, so that a candidate takes effect at once
    fields = query.partition("(")[2].rstrip(")").split("; ")  # in place of a model
    return "Your parcel is on its way. " + ", ".join(each for each in fields if each.partition(":")[0] in prompt)


async def main() -> None:
    result = await optimize(
        config_path=HERE / "optimizer.json",
        call_agent=call_agent,
        target_prompt=TargetPrompt().add_callback("system_prompt", read=read_prompt, write=write_prompt),
        train_dataset_path=HERE / "train.jsonl",
        validation_dataset_path=HERE / "val.jsonl",
        output_dir=HERE / "runs" / "latest",
        update_source=False,  # the baseline of the sandbox is restored at the end
        verbose=0,
    )
    print(f"pass rate {result.baseline_pass_rate:.0%} -> {result.best_pass_rate:.0%}, {result.stop_reason}")
    print("sandbox   ", await read_prompt())
    await put("production/system_prompt", result.best_prompts["system_prompt"])  # once it has been approved
    print("production", await get("production/system_prompt"))


asyncio.run(main())
