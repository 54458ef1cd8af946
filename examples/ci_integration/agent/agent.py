"""The agent that both halves share: the tests of a pull request, and the optimization at night."""

from pathlib import Path

PROMPT = Path(__file__).parent / "prompts" / "system.md"


async def call_agent(query: str) -> str:
    fields = query.partition("(")[2].rstrip(")").split("; ")  # in place of a model
    named = [each for each in fields if each.partition(":")[0] in PROMPT.read_text()]
    return f"Your parcel is on its way. {', '.join(named)}"
