"""Optimizes the two prompt files that a command-line tool reads, without knowing anything else about it."""

import asyncio
import os
import re
import sys
from pathlib import Path

from promptiter import TargetPrompt, optimize

HERE = Path(__file__).parent
WORKSPACE = HERE / "workspace"
TIMEOUT_S = 90.0


async def call_agent(query: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, HERE / "cli.py", "--add-dir", WORKSPACE, query),  # an argument needs no shell escapes
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except TimeoutError:
        process.kill()
        raise
    if process.returncode != 0:
        raise RuntimeError(f"the tool exited with {process.returncode}: {errors[-400:]!r}")
    return re.sub(r"\x1b\[\d*m", "", output.decode()).strip()  # without colors, so that answers can be compared


target = (
    TargetPrompt()
    .add_path("claude_md", WORKSPACE / "CLAUDE.md")
    .add_path("skill_md", WORKSPACE / ".claude" / "skills" / "city-info" / "SKILL.md")
)
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
