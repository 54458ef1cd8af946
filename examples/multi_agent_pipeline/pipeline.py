"""A chain of two sub-agents. Each reads its own prompt anew in each call."""

from pathlib import Path

PROMPTS = Path(__file__).parent / "prompts"


def name_fields(prompt: str, text: str) -> str:
    """In place of a model: keep the fields that the prompt asks for."""
    return "; ".join(each for each in text.split("; ") if each.partition(":")[0] in prompt)


async def collect(query: str) -> str:
    return name_fields((PROMPTS / "collector.md").read_text(), query.partition("(")[2].rstrip(")"))


async def write(notes: str) -> str:
    return f"Your parcel is on its way. {name_fields((PROMPTS / 'writer.md').read_text(), notes)}"


async def call_agent(query: str) -> str:
    return await write(await collect(query))
