"""YAML as JSON with less punctuation: what JSON reads as a number, true, false or null is one, all else is text.

So `expected: yes`, `expected: 2024-05-01` and `expected: 007` stay what was written, which plain YAML 1.1 would turn
into a boolean, a date and an octal number.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

from promptiter.evaluation.data.document import Item
from traces.errors import Place
from traces.model import Json

_TAG = "tag:yaml.org,2002:"
_MAX_DEPTH = 100
_MAX_VALUES = 1_000_000
_WHOLE = r"-?(?:0|[1-9][0-9]{0,17})"  # longer ones would not fit into 64 bits, and stay text
_PLAIN = (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", _WHOLE, "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)", "-0123456789"),
    ("merge", r"<<", "<"),
)
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")


def read_yaml(text: str, *, file: str) -> Item:
    """The one document of a YAML file."""
    import yaml

    whole = Item(None, Place(file))
    try:
        _check_depth(text, whole)
        document = Item(yaml.load(text, Loader=_loader()), whole.place)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = Item(None, Place(file, line=None if mark is None else mark.line + 1))
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise place.wrong(f"is not valid YAML: {problem}; check the indentation and quotes there") from error
    except (ValueError, LookupError) as error:  # `!!int five`, `!!bool maybe`
        raise whole.wrong(f"holds a tagged value that cannot be read: {error}; remove the tag") from error
    _check_values(document)
    return document


def _check_depth(text: str, whole: Item) -> None:
    """The C loader would crash the process on a document nested some thousand levels deep."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=_loader()):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise whole.wrong(f"is nested more than {_MAX_DEPTH} levels deep; flatten it")


def _check_values(document: Item) -> None:
    """Only what JSON can hold. Aliases that hold aliases can stand for endless values, so they are counted."""
    waiting: list[Json] = [document.value]
    count = 0
    while waiting:
        value = waiting.pop()
        count += 1
        if count > _MAX_VALUES:
            raise document.wrong(f"holds more than {_MAX_VALUES} values, or an alias that holds itself; use JSON lines")
        if isinstance(value, dict):
            if odd := [key for key in value if not isinstance(key, str)]:
                raise document.wrong(f"the key {odd[0]!r} is not text; put it in quotes")
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise document.wrong(f"holds the number {value!r}, which JSON cannot; put it in quotes")


@cache
def _loader() -> Any:
    import yaml

    base = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    constructors = base.yaml_constructors
    kept = {tag: constructors[tag] for tag in (*(f"{_TAG}{kind}" for kind in _KINDS), None)}
    loader: Any = type("PlainLoader", (base,), {"yaml_implicit_resolvers": {}, "yaml_constructors": kept})
    for kind, pattern, first in _PLAIN:
        starts = [*first, ""] if kind == "null" else [*first]
        loader.add_implicit_resolver(f"{_TAG}{kind}", re.compile(f"^(?:{pattern})$"), starts)
    return loader
