"""Optimizes the prompt of a running HTTP service. The prompt file is all that both processes share."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from promptiter import TargetPrompt, optimize

HERE = Path(__file__).parent
SERVICE = HERE / "service"


def post(url: str, query: str) -> str:
    request = urllib.request.Request(url, json.dumps({"query": query}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:  # raises for a status of 4xx or 5xx
        return str(json.load(response)["final_text"])


async def main(url: str) -> None:
    async def call_agent(query: str) -> str:
        return await asyncio.to_thread(post, f"{url}/chat", query)

    result = await optimize(
        config_path=HERE / "optimizer.json",
        call_agent=call_agent,
        target_prompt=TargetPrompt().add_path("system_prompt", SERVICE / "prompts" / "system.md"),
        train_dataset_path=HERE / "train.jsonl",
        validation_dataset_path=HERE / "val.jsonl",
        output_dir=HERE / "runs" / "latest",
        verbose=0,
    )
    print(f"pass rate {result.baseline_pass_rate:.0%} -> {result.best_pass_rate:.0%}, {result.stop_reason}")
    print(result.best_prompts["system_prompt"].strip())


with subprocess.Popen([sys.executable, SERVICE / "server.py"], stdout=subprocess.PIPE, text=True) as service:
    assert service.stdout is not None
    url = f"http://127.0.0.1:{service.stdout.readline().strip()}"
    try:
        urllib.request.urlopen(url, timeout=10).close()  # fail now rather than in every case
        asyncio.run(main(url))
    finally:
        service.terminate()
