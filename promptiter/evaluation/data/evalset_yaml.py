"""YAML files, read as JSON with less punctuation: only what JSON would read as a number, boolean or null is one.

`expected: yes`, `expected: 2024-05-01` and `expected: 007` stay text. Plain YAML 1.1 would turn them into a boolean, a
date and an octal number.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

from promptiter.errors import EvalSetError
from promptiter.user_files import Location
from traces.model import Json

_TAG = "tag:yaml.org,2002:"
_MAX_DEPTH = 100
_MAX_VALUES = 1_000_000
_MAX_CHARACTERS = 50_000_000
_MAX_MERGED = 100_000
_WHOLE = r"-?(?:0|[1-9][0-9]{0,17})"  # longer numbers do not fit into 64 bits and stay text
_PLAIN = (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", _WHOLE, "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)", "-0123456789"),
    ("merge", r"<<", "<"),
)
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")


def read_yaml(text: str, *, file: str) -> Json:
    """The one document of a YAML file."""
    import yaml

    try:
        _check_events(text, file)
        document = yaml.load(text, Loader=_make_loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        location = Location(file, line=None if mark is None else mark.line + 1)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise EvalSetError(
            f"{location}: is not valid YAML: {problem}; check the indentation and quotes there"
        ) from error
    except (ValueError, LookupError) as error:  # `!!int five`, `!!bool maybe`
        raise EvalSetError(f"{file}: holds a tagged value that cannot be read: {error}; remove the tag") from error
    _check_values(document, file)
    return document


def _check_events(text: str, file: str) -> None:
    """Refuse what the C loader accepts or crashes on: a key that is given twice, and several thousand levels."""
    import yaml

    opened: list[_Collection] = []
    for event in yaml.parse(text, Loader=_make_loader()):
        if isinstance(event, yaml.CollectionEndEvent):
            opened.pop()
            continue
        if opened and isinstance(event, yaml.NodeEvent):
            key = event.value if isinstance(event, yaml.ScalarEvent) else None
            if opened[-1].repeats_key(key):
                location = Location(file, line=event.start_mark.line + 1 if event.start_mark else None)
                raise EvalSetError(f"{location}: the key {key!r} is given twice; keep one of them")
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append(_Collection(is_mapping=isinstance(event, yaml.MappingStartEvent)))
        if len(opened) > _MAX_DEPTH:
            raise EvalSetError(f"{file}: is nested more than {_MAX_DEPTH} levels deep; flatten it")


class _Collection:
    """A list or mapping that is being parsed. Keys and values of a mapping alternate."""

    def __init__(self, *, is_mapping: bool) -> None:
        self._is_mapping = is_mapping
        self._is_key = True
        self._keys: set[str] = set()

    def repeats_key(self, text: str | None) -> bool:
        """Whether the next node is a key that was there before. `text` is None for nodes that are not scalars."""
        is_key, self._is_key = self._is_key, not self._is_key
        if not self._is_mapping or not is_key or text is None or text == "<<":
            return False
        is_known = text in self._keys
        self._keys.add(text)
        return is_known


def _check_values(document: Json, file: str) -> None:
    """Only what JSON can hold. Values and characters are counted, since aliases of aliases can expand without end."""
    waiting: list[Json] = [document]
    count = characters = 0
    while waiting:
        value = waiting.pop()
        count += 1
        if count > _MAX_VALUES:
            raise EvalSetError(
                f"{file}: holds more than {_MAX_VALUES} values, or an alias that holds itself; use JSON lines"
            )
        if characters > _MAX_CHARACTERS:
            raise EvalSetError(f"{file}: holds more than {_MAX_CHARACTERS} characters with its aliases; use JSON lines")
        if isinstance(value, dict):
            if odd := [key for key in value if not isinstance(key, str)]:
                raise EvalSetError(f"{file}: the key {odd[0]!r} is not text; put it in quotes")
            waiting.extend(value.values())
            characters += sum(map(len, value))
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, str):
            characters += len(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise EvalSetError(f"{file}: holds the number {value!r}, which JSON cannot; put it in quotes")


@cache
def _make_loader() -> Any:
    import yaml

    base: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    constructors = base.yaml_constructors
    kept = {tag: constructors[tag] for tag in (*(f"{_TAG}{kind}" for kind in _KINDS), None)}

    def flatten_mapping(self: Any, node: Any) -> None:
        """Merge what `<<` names into a mapping. Called for each of these too, right before they are merged."""
        self.open_merges += 1
        base.flatten_mapping(self, node)
        self.open_merges -= 1
        self.merged_keys += len(node.value) if self.open_merges else 0
        if self.merged_keys > _MAX_MERGED:
            problem = f"`<<` merges more than {_MAX_MERGED} keys in total"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    added = {
        "yaml_implicit_resolvers": {},
        "yaml_constructors": kept,
        "flatten_mapping": flatten_mapping,
        "open_merges": 0,
        "merged_keys": 0,
    }
    loader: Any = type("PlainLoader", (base,), added)
    for kind, pattern, first in _PLAIN:
        starts = [*first, ""] if kind == "null" else [*first]
        loader.add_implicit_resolver(f"{_TAG}{kind}", re.compile(f"^(?:{pattern})$"), starts)
    return loader
