"""The client of a configuration center. Here its keys are in a file; yours are behind your own SDK."""

import asyncio
import json
from pathlib import Path

STORE = Path(__file__).parent / "store.json"


async def get(key: str) -> str:
    await asyncio.sleep(0)  # in place of the network
    return str(json.loads(STORE.read_text())[key])


async def put(key: str, value: str) -> None:
    await asyncio.sleep(0)
    STORE.write_text(json.dumps({**json.loads(STORE.read_text()), key: value}, indent=2) + "\n")


async def read_prompt() -> str:
    return await get("sandbox/system_prompt")


async def write_prompt(value: str) -> None:
    await put("sandbox/system_prompt", value)
