"""An agent with two prompts: what the collector keeps, the writer writes."""

from pathlib import Path

PROMPTS = Path(__file__).parent / "prompts"


async def call_agent(query: str) -> str:
    text = query.partition("(")[2].rstrip(")")
    for name in ("collector", "writer"):  # in place of models: each keeps the fields that its prompt asks for
        prompt = (PROMPTS / f"{name}.md").read_text()
        text = "; ".join(each for each in text.split("; ") if each.partition(":")[0] in prompt)
    return f"Your parcel is on its way. {text}"
