"""Values of an eval set file, each with the place it stands in, so that every error names it.

Eval sets are read by hand rather than by a schema: keys come in snake_case or camelCase, and an error shows a key as
the user spelled it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import orjson

from promptiter.errors import EvalSetError, nearest
from promptiter.evaluation.data.case import EvalCase, EvalSet
from traces.errors import Place
from traces.model import Json


@dataclass(frozen=True, slots=True)
class Item:
    """A value, the file (and line) it comes from, and its path inside that document."""

    value: Json
    place: Place
    path: str = ""

    @property
    def where(self) -> str:
        """The shortest words that find the item in its file."""
        if self.place.line is None:
            return self.path or "the whole file"
        return f"line {self.place.line}" + (f", {self.path}" if self.path else "")

    def wrong(self, problem: str) -> EvalSetError:
        """The error that says what is wrong with this item, and where it stands."""
        return EvalSetError(f"{self.place}: {self.path}: {problem}" if self.path else f"{self.place}: {problem}")

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong(f"must be text, got {_short(self.value)}; write it as text")
        return self.value

    def number(self) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.wrong(f"must be a number, got {_short(self.value)}")
        return self.value

    def mapping(self) -> dict[str, Json]:
        if not isinstance(self.value, dict):
            raise self.wrong(f"must be an object, got {_short(self.value)}")
        return self.value

    def elements(self) -> list[Item]:
        if not isinstance(self.value, list):
            raise self.wrong(f"must be a list, got {_short(self.value)}")
        return [Item(value, self.place, f"{self.path}[{index}]") for index, value in enumerate(self.value)]

    def json_text(self) -> str:
        """Text as it is, anything else as its JSON text."""
        if isinstance(self.value, str):
            return self.value
        try:
            return orjson.dumps(self.value).decode()
        except TypeError as error:
            raise self.wrong(f"cannot be written as JSON: {error}") from error

    def fields(self, known: tuple[str, ...]) -> Fields:
        """The values by snake_case key, in either spelling; null counts as absent, any other key is an error."""
        spellings = _spellings(known)
        found: dict[str, Item] = {}
        for key, value in self.mapping().items():
            item = Item(value, self.place, f"{self.path}.{key}" if self.path else str(key))
            name = spellings.get(key)
            if name is None:
                hint = nearest(str(key), spellings)
                raise item.wrong(f"{key!r} is not a known key{hint}; known are {', '.join(known)}")
            if name in found:
                raise item.wrong(f"{key!r} says again what {found[name].path!r} says; keep one of them")
            found[name] = item
        return Fields(self, {name: item for name, item in found.items() if item.value is not None})


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one object."""

    owner: Item
    items: Mapping[str, Item]

    def __contains__(self, name: str) -> bool:
        return name in self.items

    def get(self, name: str) -> Item | None:
        return self.items.get(name)

    def need(self, name: str) -> Item:
        if name not in self.items:
            raise self.owner.wrong(f"{name!r} is missing; add it")
        return self.items[name]

    def text(self, name: str) -> str:
        """The text of an optional field, empty when absent."""
        return self.items[name].text() if name in self.items else ""

    def value(self, name: str) -> Json:
        return self.items[name].value if name in self.items else None

    def mapping(self, name: str) -> dict[str, Json]:
        return self.items[name].mapping() if name in self.items else {}

    def elements(self, name: str) -> list[Item]:
        return self.items[name].elements() if name in self.items else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSet:
    """An eval set as it was read: each case with the item it came from."""

    id: str
    source: Item
    cases: Sequence[tuple[Item, EvalCase]]
    name: str = ""
    description: str = ""

    def checked(self) -> EvalSet:
        """The eval set, if it has cases, their ids are unique, and every value can be written again."""
        if not self.cases:
            raise self.source.wrong("holds no cases; write at least one")
        first: dict[str, Item] = {}
        for item, case in self.cases:
            if not case.id:
                raise item.wrong("the id of the case is empty; give it one")
            if case.id in first:
                taken = first[case.id].where
                raise item.wrong(f"the id {case.id!r} is already that of {taken}; give each case its own id")
            first[case.id] = item
            _check_writable(case, item)
        cases = tuple(case for _, case in self.cases)
        return EvalSet(id=self.id, cases=cases, name=self.name, description=self.description)


def _check_writable(case: EvalCase, item: Item) -> None:
    """Content hashes are taken of JSON, so a value that JSON cannot hold must not get further than this."""
    try:
        orjson.dumps(case)
    except TypeError as error:
        raise item.wrong(f"case {case.id!r} holds a value that cannot be written as JSON: {error}") from error


@cache
def _spellings(known: tuple[str, ...]) -> dict[str, str]:
    """The snake_case name of every key in either spelling."""
    spellings = {name: name for name in known}
    for name in known:
        first, *others = name.split("_")
        spellings[first + "".join(word.capitalize() for word in others)] = name
    return spellings


def _short(value: Json) -> str:
    """The value in a few words; what is inside a list or object may be deeper than repr can go."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
