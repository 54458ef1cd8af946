"""Keys of promptiter.yaml that were renamed (renamed_keys.json). An old key is an error that names the new one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TypeAlias

import orjson

from traces.model import Json

KeyPath: TypeAlias = tuple[str, ...]


@cache
def read_renamed_keys() -> dict[KeyPath, str]:
    """The new key of each old one."""
    table = orjson.loads(files(__package__).joinpath("renamed_keys.json").read_bytes())
    return {tuple(old.split(".")): new for old, new in table.items()}


def find_renamed_keys(document: Mapping[str, Json]) -> dict[KeyPath, str]:
    """The old keys of a document, with the new key of each."""
    return {path: new for path, new in read_renamed_keys().items() if _contains(document, path)}


def drop_key(document: Mapping[str, Json], path: KeyPath) -> dict[str, Json]:
    """A copy of a document without the key at a path."""
    first, *rest = path
    if not rest:
        return {key: value for key, value in document.items() if key != first}
    return {**document, first: drop_key(document[first], tuple(rest))} if first in document else dict(document)


def _contains(value: Json, path: KeyPath) -> bool:
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True
