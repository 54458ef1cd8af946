"""FieldSource: a surface whose value is one field inside a file. Only the bytes of that field ever change.

The file is read and written as by FileSource, so an in-place agent can use a field as well. Each format has a module:
`markdown_section`, `yaml_field`, `json_field`, `python_literal`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from promptiter.errors import SetupError
from promptiter.sources.file import LINE_ENDS, FileSource
from traces.model import Json


class Field(Protocol):
    """A place inside the text of a file. SetupError says why it is not there or cannot hold a value, and what to do."""

    @property
    def name(self) -> str:
        """The field as a user writes it after the file: `#Planner`, `:agents.planner.prompt`."""

    def read(self, text: str) -> Json:
        """Return the value of the field in this text."""

    def replace(self, text: str, value: Json) -> str:
        """Return the text with another value in the field, after checking that nothing else has changed."""


@dataclass(frozen=True, slots=True)
class FieldSource(FileSource):
    """A field of a text file. As the source of an in-place agent, it holds the value as text, or as JSON."""

    inside: Field = field(kw_only=True)

    @property
    def place(self) -> str:
        """The file and the field, as in `sources` of promptiter.yaml."""
        return f"{os.fspath(self.path)}{self.inside.name}"

    def decode(self, raw: bytes) -> str:
        value = self.read_value(raw)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def encode(self, text: str, *, like: bytes) -> bytes:
        value = text if isinstance(self.read_value(like), str) else json.loads(text)
        return self.replace_value(like, value)

    def read_value(self, raw: bytes) -> Json:
        """The value of the field in a file with this content."""
        with self._name_place():
            return self.inside.read(self._whole.decode(raw))

    def replace_value(self, raw: bytes, value: Json) -> bytes:
        """The content of the file with another value in the field. SetupError if the format cannot hold it."""
        whole = self._whole
        with self._name_place():
            text = self.inside.replace(whole.decode(raw), value)
        written = whole.encode(text, like=raw)
        if whole.decode(written) != text:
            raise SetupError(f"{self.place}: {LINE_ENDS}")
        return written

    @property
    def _whole(self) -> FileSource:
        return FileSource(self.path, encoding=self.encoding)

    @contextmanager
    def _name_place(self) -> Iterator[None]:
        try:
            yield
        except SetupError as error:
            raise SetupError(f"{self.place}: {error}") from error


def is_same(one: Json, other: Json) -> bool:
    """Whether two values are equal as JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(value, other[name]) for name, value in one.items())
    return bool(one == other)


def split_path(path: str) -> tuple[str, ...]:
    """The names in `agents.planner.prompt`; a name with a dot is quoted: `models."gpt-4.1".prompt`."""
    names, rest = [], path
    while True:
        if rest.startswith('"'):
            try:
                name, end = json.JSONDecoder().raw_decode(rest)
            except ValueError as error:
                raise SetupError(f'the path {path!r} has an open quote; write models."gpt-4.1".prompt') from error
            rest = rest[end:]
        else:
            name, dot, after = rest.partition(".")
            rest = dot + after
        if name == "" or (rest and not rest.startswith(".")):
            raise SetupError(f"the path {path!r} has an empty name; write it like agents.planner.prompt")
        names.append(name)
        if not rest:
            return tuple(names)
        rest = rest[1:]


def join_path(names: tuple[str, ...]) -> str:
    """The path with these names, as `split_path` reads it."""
    return ".".join(json.dumps(name) if "." in name or name[:1] in ('"', "") else name for name in names)


def pick_index(name: str, length: int) -> int | None:
    """The position in a list that a name of a path means; None if there is none."""
    return int(name) if name.isascii() and name.isdigit() and int(name) < length else None
