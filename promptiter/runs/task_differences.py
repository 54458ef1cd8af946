"""Whether two configurations describe the same task: the same agent, cases and metrics, measured in the same way.

Searches can be compared only if nothing but the search differs: its options and stages, what it may change, and when it
accepts and stops.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from promptiter.runs.header import Configuration, HeaderSet, RunHeader
from promptiter.wording import join_names, plural
from traces.model import Json

SHARED_SETTINGS = (
    *("repeats", "max_errored_fraction", "objective", "goal", "alpha", "final_test", "initial_profile"),
    *("scorer", "teacher", "judge", "metrics", "weights"),
)
"""What of a request belongs to the task, not to the search."""

MAX_NAMED = 5


def find_task_differences(first: RunHeader, second: RunHeader) -> list[str]:
    """List what differs between the tasks of two runs, the first one's value first; empty if they are the same."""
    return list(dict.fromkeys(_list_differences(first, second)))


def _list_differences(first: RunHeader, second: RunHeader) -> Iterator[str]:
    yield from _compare_agents(first, second)
    for name in ("train", "validation", "test"):
        yield from _compare_sets(name, getattr(first, name), getattr(second, name))
    for name in SHARED_SETTINGS:
        values = [each.request.get(name) for each in (first, second)]
        if values[0] != values[1]:
            yield f"{name}: {_shorten(values[0])} and {_shorten(values[1])}"
    before, after = (each.configuration or Configuration(file="") for each in (first, second))
    if before.files != after.files or (
        not before.files and before.document.get("metrics") != after.document.get("metrics")
    ):
        yield "metrics: their settings differ"
    if first.judges != second.judges:
        yield "metrics: their judges differ"


def _compare_agents(first: RunHeader, second: RunHeader) -> Iterator[str]:
    before, after = first.structure, second.structure
    if before.structure_id != after.structure_id:
        others = sorted(before.surfaces.keys() ^ after.surfaces.keys())
        named = f": only one has {join_names(others, limit=MAX_NAMED)}" if others else ""
        yield f"agent: its nodes, edges or surfaces differ{named}"
    edited = [name for name, value in before.surfaces.items() if after.surfaces.get(name, value) != value]
    if edited:
        yield f"agent: the values of {join_names(edited, limit=MAX_NAMED)} differ"
    models = [
        name for name in sorted({*first.models, *second.models}) if first.models.get(name) != second.models.get(name)
    ]
    if models:
        yield f"models: the settings of {join_names(models, limit=MAX_NAMED)} differ"


def _compare_sets(name: str, first: HeaderSet | None, second: HeaderSet | None) -> Iterator[str]:
    before, after = ({} if each is None else each.cases for each in (first, second))
    if before == after:
        return
    changed = [case for case in sorted({*before, *after}) if before.get(case) != after.get(case)]
    yield f"{name}: {plural(len(changed), 'case')} differ ({join_names(changed, limit=MAX_NAMED)})"


def _shorten(value: Json) -> str:
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    return text if len(text) <= 60 else f"{text[:57]}…"
