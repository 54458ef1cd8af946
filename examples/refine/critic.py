"""A judge that runs offline. In your project, name a model instead."""

from __future__ import annotations

import json

WORDS = ("Sources:", "Paris")
"""What the essay must contain for each entry of the rubric."""


def judge(message: str) -> str:
    """A verdict on each entry of the rubric."""
    found = [
        {"id": f"criterion_{number}", "reason": f"looked for {word}", "passed": word in message}
        for number, word in enumerate(WORDS, start=1)
    ]
    return json.dumps({"verdicts": found})
