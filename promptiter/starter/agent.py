"""A support desk: six models turn a customer's message into an entry for the ticket system.

                ┌─ returns ──┐
    reception ──┼─ payments ─┼── lead ── filing
                └─ delivery ─┘

Last week the ticket system got a new field, the purchase date. Two of the instructions below were not updated, and
fixing only one of them changes nothing. `promptiter run` finds out which ones.
"""

from promptiter import Edge, GraphAgent, ModelNode
from promptiter.agents import Join

MODEL = "simulated"  # works offline; for a real model write "gpt-4o-mini", "anthropic/claude-…", "ollama/…"

agent = GraphAgent(
    name="support_desk",
    nodes=(
        ModelNode(
            name="reception",
            model=MODEL,
            instruction="You are the reception of a shop's support desk. Pass on the order id, the product, the "
            "amount, the city and the wish exactly as given.",
        ),
        ModelNode(
            name="returns",
            model=MODEL,
            instruction="You look after returns at a shop's support desk. Keep the order id, the product, the purchase "
            "date and the wish in your note. Leave the values unchanged.",
        ),
        ModelNode(
            name="payments",
            model=MODEL,
            instruction="You look after payments at a shop's support desk. Report the order id and the amount. Copy "
            "the values verbatim.",
        ),
        ModelNode(
            name="delivery",
            model=MODEL,
            instruction="You look after deliveries at a shop's support desk. Your note must contain the order id and "
            "the city, word for word.",
        ),
        ModelNode(
            name="lead",
            model=MODEL,
            prompt="{returns}\n\n{payments}\n\n{delivery}",
            instruction="You lead a shop's support desk. Never drop anything that your colleagues noted. Do not "
            "change the values.",
        ),
        ModelNode(
            name="filing",
            model=MODEL,
            instruction="You file cases in the ticket system of a shop. Reply only with a JSON object with the keys "
            "order id, product, amount, city and wish. Copy the values exactly as given.",
        ),
    ),
    edges=(
        Edge("reception", "returns"),
        Edge("reception", "payments"),
        Edge("reception", "delivery"),
        Join(("returns", "payments", "delivery"), "lead"),
        Edge("lead", "filing"),
    ),
)
