"""How a value is written as a Python literal: in the quotes and with the prefix of the literal that it replaces."""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from promptiter.errors import SetupError
from traces.model import Json

_OPENING = re.compile(r"([A-Za-z]*)('''|\"\"\"|'|\")")
_PIECE = re.compile(r"[^ \n]*[ \n]+|[^ \n]+")
_MIN_WIDTH = 40
_ESCAPES = {"\\": "\\\\", "\r": "\\r"}


@dataclass(frozen=True, slots=True)
class StringToken:
    """One string of a literal, which may consist of several adjacent ones. `start` and `end` are positions in it."""

    start: int
    end: int
    source: str

    @property
    def value(self) -> str:
        return str(ast.literal_eval(self.source))


def list_string_tokens(source: str) -> list[StringToken]:
    """The strings of a string literal."""
    text = f"({source})"
    starts = [0, *(at + 1 for at, character in enumerate(text) if character == "\n")]
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="\n").readline):
            if token.type == tokenize.STRING:
                start, end = (starts[row - 1] + column for row, column in (token.start, token.end))
                found.append(StringToken(start - 1, end - 1, text[start:end]))
    except (tokenize.TokenError, SyntaxError) as error:
        raise SetupError(f"the literal cannot be read: {error}; change it by hand") from error
    return found


def write_strings(tokens: Sequence[StringToken], source: str, value: str) -> str:
    """A literal with this value. Of several adjacent strings, those that stay the same are kept."""
    if len(tokens) == 1:
        return write_string(tokens[0].source, value)
    low, high, middle = _find_changed_strings([token.value for token in tokens], value)
    first, last = tokens[low], tokens[high - 1]
    gaps = [
        source[one.end : other.start] for one, other in zip(tokens[low : high - 1], tokens[low + 1 : high], strict=True)
    ]
    if any("#" in gap for gap in gaps):
        raise SetupError("there are comments between the strings of the literal; move them above it")
    gap = source[tokens[0].end : tokens[1].start].partition("#")[0]
    width = max(_MIN_WIDTH, *(len(token.source) for token in tokens))
    written = (gap or " ").join(write_string(first.source, piece) for piece in _split_text(middle, width))
    return source[: first.start] + written + source[last.end :]


def write_string(like: str, value: str) -> str:
    """A string literal with this value, in the style of another one if that can hold it."""
    return next(text for text in _list_strings(like, value) if _has_value(text, value))


def write_value(like: str, value: Json) -> str:
    """A literal with this value; a tuple stays a tuple."""
    if "#" in like and any(token.type == tokenize.COMMENT for token in _tokenize(like)):
        raise SetupError("there are comments inside of the value, which would be lost; change it by hand")
    if isinstance(value, list | dict) and "\n" in like:
        lines = like.split("\n")
        margin, end = (re.match(r"[ \t]*", lines[at])[0] for at in (1, -1))  # type: ignore[index]
        items = "".join(f"{margin}{item},\n" for item in _list_items(like, value))
        return f"{_bracket(like, value)[0]}\n{items}{end}{_bracket(like, value)[1]}"
    if isinstance(value, list | dict):
        comma = "," if _bracket(like, value) == "()" and len(value) == 1 else ""
        return f"{_bracket(like, value)[0]}{', '.join(_list_items(like, value))}{comma}{_bracket(like, value)[1]}"
    if isinstance(value, float) and not math.isfinite(value):
        raise SetupError(f"{value} is not a value of JSON; use a finite number")
    return (
        write_string("''" if "'" in like and '"' not in like else '""', value)
        if isinstance(value, str)
        else repr(value)
    )


def _bracket(like: str, value: Json) -> str:
    return "{}" if isinstance(value, dict) else "()" if like.startswith("(") else "[]"


def _list_items(like: str, value: Json) -> Iterator[str]:
    quotes = "'" if "'" in like and '"' not in like else '"'
    if isinstance(value, dict):
        for name, each in value.items():
            yield f"{write_string(quotes * 2, name)}: {write_value(quotes, each)}"
    elif isinstance(value, list):
        for each in value:
            yield write_value(quotes, each)


def _tokenize(source: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(f"({source})", newline="\n").readline)
    except (tokenize.TokenError, SyntaxError) as error:
        raise SetupError(f"the literal cannot be read: {error}; change it by hand") from error


def _list_strings(like: str, value: str) -> Iterator[str]:
    opening = _OPENING.match(like)
    prefix, quote = (opening[1], opening[2]) if opening else ("", '"')
    body = like[len(prefix) + len(quote) : -len(quote)]
    if "r" in prefix.lower():
        yield f"{prefix}{quote}{value}{quote}"
        prefix = prefix.replace("r", "").replace("R", "")
    if len(quote) == 3 and body.startswith("\\\n"):
        yield f"{prefix}{quote}\\\n{_escape(value, quote, body)}{quote}"
    yield f"{prefix}{quote}{_escape(value, quote, body)}{quote}"
    yield ascii(value)


def _escape(value: str, quote: str, body: str) -> str:
    """The text between the quotes. What was not escaped in the old text is not escaped either."""
    is_triple = len(quote) == 3

    def write(at: int, character: str) -> str:
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character == quote[0]:
            is_safe = is_triple and at + 1 < len(value) and value[at + 1] != character
            return character if is_safe else f"\\{character}"
        if character == "\n":
            return character if is_triple else "\\n"
        if character.isprintable() or (character in body and character != "\0"):
            return character
        if character == "\t":
            return character if is_triple else "\\t"
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return "".join(write(at, character) for at, character in enumerate(value))


def _has_value(text: str, value: str) -> bool:
    try:
        return bool(ast.literal_eval(text) == value)
    except (SyntaxError, ValueError):
        return False


def _find_changed_strings(parts: Sequence[str], value: str) -> tuple[int, int, str]:
    """Which of several adjacent strings must be replaced, from the first to behind the last, and their new text."""
    low, start = 0, 0
    while low < len(parts) and value.startswith(parts[low], start):
        start += len(parts[low])
        low += 1
    high, end = len(parts), len(value)
    while high > low and value.endswith(parts[high - 1], start, end) and end - len(parts[high - 1]) >= start:
        end -= len(parts[high - 1])
        high -= 1
    while low == high or (start == end and (low > 0 or high < len(parts))):
        if low > 0:
            low -= 1
            start -= len(parts[low])
        else:
            end += len(parts[high])
            high += 1
    return low, high, value[start:end]


def _split_text(text: str, width: int) -> list[str]:
    """Split a text behind spaces and line breaks into pieces of about this width."""
    pieces = [""]
    for part in _PIECE.findall(text):
        if pieces[-1] and (len(pieces[-1]) + len(part) > width - 2 or pieces[-1].endswith("\n")):
            pieces.append("")
        pieces[-1] += part
    return pieces
