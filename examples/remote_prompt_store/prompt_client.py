"""The client of a configuration center. Here its keys are in a file; yours are behind your own SDK."""

import asyncio
import json
from pathlib import Path

FIRST_VALUES = Path(__file__).parent / "store.json"
STORE = Path(__file__).parent / "runs" / "store.json"


async def get(key: str) -> str:
    await asyncio.sleep(0)  # in place of the network
    return _load()[key]


async def put(key: str, value: str) -> None:
    await asyncio.sleep(0)
    STORE.parent.mkdir(exist_ok=True)
    STORE.write_text(json.dumps({**_load(), key: value}, indent=2))


async def read_prompt() -> str:
    return await get("sandbox/system_prompt")


async def write_prompt(value: str) -> None:
    await put("sandbox/system_prompt", value)


def _load() -> dict[str, str]:
    values: dict[str, str] = json.loads((STORE if STORE.exists() else FIRST_VALUES).read_text())
    return values
