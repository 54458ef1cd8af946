"""A support agent. Its instruction does not ask for the city, which some answers should contain."""

from promptiter.agents import agent, ask, surface

MODEL = "simulated"  # works offline; for a real model write "gpt-4o-mini", "anthropic/claude-…", "ollama/…"


@agent(instruction="Answer the customer politely. Always include the order id from the input in your output.")
async def support(question: str) -> str:
    return await ask(question, instruction=surface("instruction"), model=MODEL)
