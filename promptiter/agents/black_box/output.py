"""The answer in what a command or a service wrote: all of it, a JSON path into it, or what a function makes of it.

`$.choices[0].message.content` is a path; `$` is the whole document, and `$["a key"]` a key of any spelling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeAlias

import orjson

from promptiter.agents.base import to_text
from promptiter.concurrency import call_any
from promptiter.errors import AnswerError, SetupError
from promptiter.wording import shorten
from traces.model import Json
from traces.snapshots import to_plain_json

Normalize: TypeAlias = "str | Callable[[str], Json]"
"""A JSON path, or a function of the text that was written."""

TAIL = 2000
"""Characters of an output that the message of an error shows."""

_SEGMENT = re.compile(r"\.([^.\[\]\s\"']+)|\[(\d+)\]|\[(\"(?:[^\"\\]|\\.)*\")\]")


def check_normalize(normalize: Normalize | None) -> None:
    """Raise SetupError if this is neither a JSON path nor a function."""
    if isinstance(normalize, str):
        _split_path(normalize)
    elif normalize is not None and not callable(normalize):
        raise SetupError(f"normalize is {shorten(normalize)}; give a JSON path such as $.answer, or a function")


def show_tail(text: str) -> str:
    """`: ...` with the end of what was written, to complete the message of an error; empty if that is empty."""
    text = text.strip()
    if not text:
        return ""
    return f": {text}" if len(text) <= TAIL else f": … {text[-TAIL:]}"


async def read_answer(text: str, normalize: Normalize | None) -> tuple[str, Json]:
    """The answer as text, and as data if it is more than text. AnswerError if there is none."""
    if normalize is None:
        return text, None
    value = _find(text, normalize) if isinstance(normalize, str) else await call_any(normalize, text)
    if value is None:
        where = f"at {normalize}" if isinstance(normalize, str) else "that normalize returned"
        raise AnswerError(f"no answer was found {where}; the output is {shorten(text)}")
    if isinstance(value, str):
        return value, None
    plain = to_plain_json(value)
    return to_text(plain), plain


def _find(text: str, path: str) -> Json:
    try:
        value: Json = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise AnswerError(f"the output is not JSON ({error}): {shorten(text)}; {path} is looked up in it") from error
    for number, name in enumerate(names := _split_path(path)):
        is_there = name in value if isinstance(value, dict) else isinstance(value, list) and _is_index(name, value)
        if not is_there:
            place = "".join(f"[{json.dumps(each)}]" for each in names[: number + 1])
            raise AnswerError(f"the output has no ${place}; it is {shorten(text)}")
        value = value[name]
    return value


def _is_index(name: str | int, value: list[Json]) -> bool:
    return isinstance(name, int) and name < len(value)


def _split_path(path: str) -> list[str | int]:
    names: list[str | int] = []
    at = 1
    while at < len(path):
        match = _SEGMENT.match(path, at)
        if match is None:
            break
        key, index, quoted = match.groups()
        names.append(int(index) if index is not None else key if key is not None else json.loads(quoted))
        at = match.end()
    if not path.startswith("$") or at < len(path):
        raise SetupError(f"normalize: {path!r} is not a JSON path; write $.answer or $.choices[0].text, or module:attr")
    return names
