"""JSON in the answers of models: found among reasoning, drafts, code fences and prose, and parsed leniently.

Raw line breaks in texts, trailing commas, unknown escapes and words of Python are accepted. Nothing is completed: of
JSON that does not end, neither the beginning nor a part inside it is used.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import orjson

from traces.model import Json

MOST_UNCLOSED = 20
"""Brackets and tags in the prose of an answer that nothing closes. With more, the rest is not searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJson:
    """One JSON value of an answer, or the problem that prevents reading it."""

    value: Json = None
    problem: str = ""
    is_object: bool = False
    ends_answer: bool = False
    """Whether nothing but a closing code fence follows."""
    is_unfinished: bool = False
    """Whether the answer ends before the value does."""


def find_json(text: str) -> list[FoundJson]:
    """Find all JSON objects and arrays of an answer in their order. Those in its reasoning are left out.

    A single number, text or word is found if it is the whole answer, or all of its code fence.
    """
    whole = drop_reasoning(text).strip()
    fence = _ONE_FENCE.match(whole)
    for candidate in (whole, *([fence[1]] if fence else [])):
        try:
            value = parse_leniently(candidate)
        except ValueError:
            continue
        return [FoundJson(value=value, is_object=isinstance(value, dict), ends_answer=True)]
    found: list[FoundJson] = []
    at = unclosed = 0
    while unclosed <= MOST_UNCLOSED and (mark := _MARK.search(text, at)) is not None:
        at = mark.end()
        if mark["closing"]:  # all before it was reasoning, whose opening tag the server left out
            found = []
        elif mark["tag"]:
            closing = _find_closing_tag(text, mark)
            if closing is None and not text[: mark.start()].rpartition("\n")[2].strip():
                break  # the rest is reasoning
            unclosed += closing is None
            at = closing or at
        elif _VALUE_START.match(text, mark.start()):
            end = _find_end(text, mark.start())
            if end is None and not _OBJECT_START.match(text, mark.start()):
                unclosed += 1  # prose, such as "from [0, 1)"
                continue
            found.append(_read_value(text, mark.start(), end))
            if end is None:
                break
            at = end
    return found


def drop_reasoning(text: str) -> str:
    """The answer without the reasoning that it begins with."""
    found = _LEADING_REASONING.match(text)
    return text if found is None else text[found.end() :]


def parse_leniently(raw: str) -> Json:
    """Parse JSON with raw control characters, trailing commas, unknown escapes and True for true. Raises ValueError."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    problem = ""
    for candidate in (raw, _JSON_SLIP.sub(_correct_slip, raw)):
        try:
            return json.loads(candidate, strict=False)
        except (json.JSONDecodeError, RecursionError) as error:
            problem = problem or str(error)
    raise ValueError(f"its JSON is broken: {problem}")


_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*"'
_ONE_FENCE = re.compile(r"\A```(?:json)?[ \t]*\r?\n(.*?)\r?\n?[ \t]*```\Z", re.DOTALL | re.IGNORECASE)
_TAG_NAMES = r"(?:think|thinking|thought|reasoning|analysis|scratchpad)"
_MARK = re.compile(
    rf"(?P<closing></{_TAG_NAMES}>|\[/THINK\])|(?P<tag><{_TAG_NAMES}>|\[THINK\])|\{{|(?:\[\s*+)+", re.IGNORECASE
)
_LEADING_REASONING = re.compile(
    rf"\A\s*(?:<({_TAG_NAMES})>.*?</\1>|\[THINK\].*?\[/THINK\])\s*", re.DOTALL | re.IGNORECASE
)
_VALUE_START = re.compile(
    rf"(?:\[\s*+)*(?:\{{\s*(?:\}}|{_STRING}\s*:)|(?:{_STRING}|-?\d[\d.eE+-]*|true|false|null)\s*[,\]]|\])", re.DOTALL
)
"""How JSON begins, as opposed to `{name}` or `[Step 2]` in prose."""
_OBJECT_START = re.compile(r"(?:\[\s*+)*\{")
_TOKEN = re.compile(rf'{_STRING}|["\[\]{{}}]', re.DOTALL)
_JSON_SLIP = re.compile(rf"(?P<text>{_STRING}?+)|,(?=\s*[}}\]])|\b(?P<word>True|False|None)\b", re.DOTALL)
"""The last quote may be missing: otherwise each quote of a long prose would be followed to its end."""
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPE = re.compile(r"""\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))""", re.DOTALL)
_REST = re.compile(r"\s*(?:```\s*)?\Z")


def _find_closing_tag(text: str, tag: re.Match[str]) -> int | None:
    """Where the reasoning that a tag opens has ended; None if it does not end."""
    closing = re.compile(re.escape(f"{tag[0][0]}/{tag[0][1:]}"), re.IGNORECASE).search(text, tag.end())
    return None if closing is None else closing.end()


def _find_end(text: str, start: int) -> int | None:
    """Where the brackets that open at `start` are all closed; None if they are not."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token[0] == '"':
            return None
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if not depth:
            return token.end()
    return None


def _read_value(text: str, start: int, end: int | None) -> FoundJson:
    is_object, ends_answer = text[start] == "{", end is not None and _REST.match(text, end) is not None
    try:
        return FoundJson(value=parse_leniently(text[start:end]), is_object=is_object, ends_answer=ends_answer)
    except ValueError as error:
        return FoundJson(problem=str(error), is_object=is_object, ends_answer=ends_answer, is_unfinished=end is None)


def _correct_slip(found: re.Match[str]) -> str:
    """A text with valid escapes, a word of JSON for that of Python, or nothing in place of a trailing comma."""
    if found["text"] is None:
        return _WORDS.get(found["word"], "")
    return _ESCAPE.sub(lambda each: each[0] if each[1] else "'" if each[2] == "'" else f"\\\\{each[2]}", found["text"])
