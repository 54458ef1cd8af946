"""Keys of promptiter.yaml that were renamed. An old key is an error that names the new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from traces.model import Json

KeyPath: TypeAlias = tuple[str, ...]

RENAMED: Mapping[KeyPath, str] = {
    ("memo",): "cache",
    ("error",): "alpha",
    ("claim",): "final_test",
    ("claim", "draws"): "final_test.repeats",
    ("claim", "wanted_gain"): "final_test.min_detectable_gain",
    ("final_test", "draws"): "final_test.repeats",
    ("final_test", "wanted_gain"): "final_test.min_detectable_gain",
    ("evaluation", "draws"): "evaluation.repeats",
    ("acceptance", "paired_gain", "error"): "acceptance.paired_gain.alpha",
    ("acceptance", "paired_gain", "draws"): "acceptance.paired_gain.repeats",
    ("loss_targets",): "loss_placements",
    ("sealed",): "test",
}


def find_renamed_keys(document: Mapping[str, Json]) -> dict[KeyPath, str]:
    """The old keys of a document, with the new key of each."""
    return {path: new for path, new in RENAMED.items() if _contains(document, path)}


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
