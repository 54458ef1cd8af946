"""JSON fields: a value in a JSON file, found by its position, so that everything else keeps its format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from promptiter.errors import SetupError, nearest
from promptiter.sources.field import is_same, join_path, pick_index, split_path
from traces.model import Json

Span: TypeAlias = tuple[int, int]

_SPACE = re.compile(r"[ \t\n\r]*")
_TIGHT, _LOOSE = re.compile(r"[,:]\S"), re.compile(r"[,:]\s")


@dataclass(frozen=True, slots=True)
class JsonField:
    """A field of a JSON document, such as `agents.planner.prompt`. Positions in an array are numbers."""

    path: str

    @property
    def name(self) -> str:
        return f":{self.path}"

    def read(self, text: str) -> Json:
        start, end = self._find(text)
        value: Json = json.loads(text[start:end])
        return value

    def replace(self, text: str, value: Json) -> str:
        start, end = self._find(text)
        changed = text[:start] + _write(value, text, start, end) + text[end:]
        expected, found = _load_pairs(text), _load_pairs(changed)
        if _without(expected, self._names) != _without(found, self._names) or not is_same(self.read(changed), value):
            raise SetupError("JSON cannot hold this value; change it by hand")
        return changed

    @property
    def _names(self) -> tuple[str, ...]:
        return split_path(self.path)

    def _find(self, text: str) -> Span:
        _load_pairs(text)
        span = _SPACE.match(text).end(), len(text)  # type: ignore[union-attr]
        for number, name in enumerate(self._names):
            span = _find_member(text, span[0], name, where=join_path(self._names[:number]))
        return span[0], _skip(text, span[0])


def list_strings(text: str) -> Iterator[tuple[str, str]]:
    """The path and the value of every string in a JSON document; empty if it is not JSON."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    yield from _walk(document, ())


def _walk(value: Json, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if names and all(names):
            yield join_path(names), value
    elif isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in members:
            yield from _walk(each, (*names, str(name)))


def _load_pairs(text: str) -> Json:
    """The document with objects as tuples of pairs, so that a repeated key is not lost."""
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: tuple(map(tuple, pairs)))
    except (ValueError, RecursionError) as error:
        raise SetupError(f"the file is not valid JSON: {error}") from error


def _without(tree: Json, names: Sequence[str]) -> str:
    """The document, written down, with nothing in the field."""

    def clear(value: Json, rest: Sequence[str]) -> Json:
        if not rest:
            return None
        if isinstance(value, list):
            return [clear(each, rest[1:]) if str(at) == rest[0] else each for at, each in enumerate(value)]
        return [[key, clear(each, rest[1:]) if key == rest[0] else each] for key, each in value]

    return json.dumps(clear(tree, names))


def _find_member(text: str, start: int, name: str, *, where: str) -> Span:
    """The span of a member of the object or array that starts here."""
    place = f" in {where}" if where else ""
    if text[start] not in "[{":
        raise SetupError(f"there is no {name!r}{place}, because that is neither an object nor an array")
    members = list(_list_members(text, start))
    if text[start] == "[":
        at = pick_index(name, len(members))
        if at is None:
            raise SetupError(f"there is no item {name!r}{place}; its {len(members)} items are numbered from 0")
        return members[at][1]
    found = [span for key, span in members if key == name]
    if not found:
        raise SetupError(f"there is no key {name!r}{place}{nearest(name, [str(key) for key, _ in members])}")
    if len(found) > 1:
        raise SetupError(f"the key {name!r}{place} is there {len(found)} times; remove all but one")
    return found[0]


def _list_members(text: str, start: int) -> Iterator[tuple[str | None, Span]]:
    """The keys and spans of the members of a valid object or array."""
    at, is_object = start + 1, text[start] == "{"
    while True:
        at = _skip_space(text, at)
        if text[at] in "]}":
            return
        if text[at] == ",":
            at = _skip_space(text, at + 1)
        key = None
        if is_object:
            key, at = json.JSONDecoder().raw_decode(text, at)
            at = _skip_space(text, _skip_space(text, at) + 1)
        end = _skip(text, at)
        yield key, (at, end)
        at = end


def _skip(text: str, start: int) -> int:
    """Where the value that starts here ends."""
    return json.JSONDecoder().raw_decode(text, start)[1]


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _write(value: Json, text: str, start: int, end: int) -> str:
    """The value as JSON in the style of the file: escapes, and the indentation of what it replaces."""
    is_escaped = (text.isascii() and "\\u" in text) or _holds_surrogates(value)
    old = text[start:end]
    try:
        if not isinstance(value, dict | list) or "\n" not in old:
            separators = (",", ":") if _TIGHT.search(old) and not _LOOSE.search(old) else None
            return json.dumps(value, ensure_ascii=is_escaped, separators=separators, allow_nan=False)
        line = text[text.rfind("\n", 0, start) + 1 : start]
        margin = line[: len(line) - len(line.lstrip())]
        first = old.split("\n")[1]
        unit = first[: len(first) - len(first.lstrip())].removeprefix(margin) or "  "
        written = json.dumps(value, ensure_ascii=is_escaped, indent=unit, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise SetupError(f"JSON cannot hold this value: {error}") from error
    return written.replace("\n", f"\n{margin}")


def _holds_surrogates(value: Json) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, TypeError):
        return False
    return False
