"""The agent: an async function from a query to the answer. It reads its prompts anew in each call."""

from pathlib import Path

from promptiter.llm import Message, ModelRequest
from promptiter.offline import SimulatedModel

PROMPTS = Path(__file__).parent / "prompts"
MODEL = SimulatedModel(compliance=1.0)  # in place of your own model or agent framework


async def call_agent(query: str) -> str:
    prompts = "\n".join((PROMPTS / name).read_text() for name in ("system.md", "skill.md"))
    messages = (Message("system", prompts), Message("user", query))
    return (await MODEL(ModelRequest(model="simulated", messages=messages), repeat=0)).text
