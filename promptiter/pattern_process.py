"""The process that matches patterns: it reads questions from its standard input, a line of JSON each, and answers them.

It ends when its input does, that is, with the process that started it, and when an answer takes too long.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import sys
import warnings
from dataclasses import asdict
from functools import cache
from typing import Any

from promptiter.json_schemas import TOO_DEEP, SchemaCheckError, find_violation, list_violations

READY = b"ready\n"


def main() -> None:
    """Answer questions until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    warnings.simplefilter("ignore")  # the process that asks has warned already
    answers = sys.stdout.buffer
    answers.write(READY)
    answers.flush()
    with open(os.devnull, "w") as nothing:  # noqa: PTH123 - not a path of the user
        for line in sys.stdin.buffer:
            question = json.loads(line)
            if "schema" in question:
                _load_validators()
            # Its thread needs no interpreter lock, unlike one of Python.
            faulthandler.dump_traceback_later(question["limit_s"], exit=True, file=nothing)
            answer = _encode_answer(question)
            faulthandler.cancel_dump_traceback_later()
            answers.write(answer + b"\n")
            answers.flush()


@cache
def _load_validators() -> None:
    """Import jsonschema, which takes longer than most checks."""
    list_violations({}, None)


def _encode_answer(question: dict[str, Any]) -> bytes:
    try:
        return json.dumps(_answer(question)).encode()
    except RecursionError:
        return json.dumps({"error": TOO_DEEP}).encode()


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    if "schema" not in question:
        flags = re.IGNORECASE if question["ignore_case"] else 0
        return {"answer": re.search(question["pattern"], question["text"], flags) is not None}
    try:
        if question["is_best_only"]:
            best = find_violation(question["schema"], question["value"])
            return {"answer": [] if best is None else [asdict(best)]}
        return {"answer": [asdict(each) for each in list_violations(question["schema"], question["value"])]}
    except SchemaCheckError as error:
        return {"error": str(error)}
