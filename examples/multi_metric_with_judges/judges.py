"""Judges of this example: functions from its prompt to its answer. Yours are models with a name and a key."""

import json
import re


def read(prompt: str, name: str) -> str:
    """What the prompt quotes under a name."""
    found = re.search(rf'<data name="{name}">\n?(.*?)\n?</data>', prompt, re.DOTALL)
    return found[1] if found else ""


def strict(prompt: str) -> str:
    valid = read(prompt, "reference") in read(prompt, "response")
    return json.dumps({"reason": "the reference must be in the response", "valid": valid})


def lenient(prompt: str) -> str:
    return json.dumps({"reason": "any answer will do", "valid": bool(read(prompt, "response"))})


def style(prompt: str) -> str:
    response = read(prompt, "response")
    verdicts = {"names_order": "order id" in response, "is_polite": "Your parcel" in response}
    return json.dumps(
        {"verdicts": [{"id": name, "reason": name, "passed": passed} for name, passed in verdicts.items()]}
    )
