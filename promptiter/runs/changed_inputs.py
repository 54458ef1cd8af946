"""Changed inputs: how the inputs of a run, as its header recorded them, differ from the current ones.

A run with changed inputs cannot resume: its recorded results would be mixed with results of something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import orjson

from promptiter.runs.header import Configuration, HeaderSet, HeaderStructure, RunHeader
from promptiter.wording import join_names
from traces.model import Json

FREE_KEYS = (
    *(
        "quiet",
        "json",
        "review",
        "require",
        "runs",
        "cache",
        "keep_traces",
        "keep_best_only",
        "evaluation.concurrency",
        "budget.*",
    ),
    *("executor", "executor.*", "observers", "observers.*", "apply", "sources", "sources.*"),
    *("models.*.api_key", "models.*.requests_per_minute", "models.*.tokens_per_minute"),
    *("models.*.timeout_s", "models.*.latency_s"),
)
"""Configuration keys that may change before a run is resumed: they affect how it runs, not what it computes."""

PRICE_KEYS = ("models.*.price", "models.*.price.*")
"""Keys that may change as well, unless the goal is to be cheaper: then prices decide what the run computes."""

MAX_NAMED = 5
"""Maximum number of changed cases or surfaces that a message names."""


def find_changed_inputs(header: RunHeader, current: RunHeader) -> list[str]:
    """List what changed since the header was written, one sentence for each change; empty if the run may resume."""
    before, after = (each.configuration or Configuration(file="") for each in (header, current))
    goal = header.request.get("goal")
    is_cheaper = isinstance(goal, dict) and goal.get("kind") == "cheaper"
    free = FREE_KEYS if is_cheaper else (*FREE_KEYS, *PRICE_KEYS)
    changes = [
        # The request follows from the configuration, so that a change of both is reported once.
        *(list(_compare(before.document, after.document, free=free)) or _compare(header.request, current.request)),
        *_compare_files(before.files, after.files),
        *_compare_structure(header.structure, current.structure),
        *_compare_searched_sets(header, current),
        *_compare_sets("test", header.test or _NO_SET, current.test or _NO_SET),
    ]
    return list(dict.fromkeys(changes))


def describe_changed_code(header: RunHeader, current: RunHeader) -> str | None:
    """A warning if the agent's module changed. The run may still resume: the change may not affect its behaviour."""
    before, after = header.configuration, current.configuration
    if before is None or after is None or before.code == after.code or before.code is None:
        return None
    return (
        "the agent's module has changed since the run began; recorded results are kept, so start a new run if the "
        "agent now behaves differently"
    )


def _compare(before: Mapping[str, Json], after: Mapping[str, Json], *, free: Sequence[str] = ()) -> Iterator[str]:
    """`stop.minutes was 30 and is now 60`, for each value that differs."""
    then, now = _flatten(before), _flatten(after)
    for path in dict.fromkeys((*then, *now)):
        was, is_now = then.get(path), now.get(path)
        names = {path, path.partition("[")[0]}
        if was == is_now or any(fnmatchcase(name, pattern) for name in names for pattern in free):
            continue
        if was is None:
            yield f"{path} is new: {_shorten(is_now)}"
        elif is_now is None:
            yield f"{path} was {_shorten(was)} and has been removed"
        else:
            yield f"{path} was {_shorten(was)} and is now {_shorten(is_now)}"


def _flatten(tree: Mapping[str, Json], path: str = "") -> dict[str, Json]:
    """The values of a tree by their path, `stop.minutes` or `metrics[1].threshold`."""
    values: dict[str, Json] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            values |= _flatten(value, f"{path}{name}.")
        elif isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
            for place, each in enumerate(value):
                values |= _flatten(each, f"{path}{name}[{place}].")
        else:
            values[f"{path}{name}"] = value
    return values


def _shorten(value: Json) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}…"


def _compare_files(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        if name not in after:
            yield f"the file {name!r} is no longer used"
        elif name not in before:
            yield f"the file {name!r} was not used before"
        elif before[name] != after[name]:
            yield f"the file {name!r} was changed"


def _compare_structure(before: HeaderStructure, after: HeaderStructure) -> Iterator[str]:
    if before.structure_id != after.structure_id:
        gone = [repr(name) for name in before.surfaces if name not in after.surfaces]
        new = [repr(name) for name in after.surfaces if name not in before.surfaces]
        if gone:
            yield f"the agent no longer has the surfaces {join_names(gone, limit=MAX_NAMED)}"
        if new:
            yield f"the agent has new surfaces: {join_names(new, limit=MAX_NAMED)}"
        if not gone and not new:
            yield "the agent has different nodes or edges, or surfaces of another type"
    for name in sorted(before.surfaces.keys() & after.surfaces.keys()):
        if before.surfaces[name] != after.surfaces[name]:
            yield f"the agent's own value of surface {name!r} was edited"


def _compare_searched_sets(before: RunHeader, after: RunHeader) -> Iterator[str]:
    """Compare train and validation; one set that is used for both is compared once."""
    if all(each.train == each.validation for each in (before, after)):
        yield from _compare_sets("cases", before.validation, after.validation)
        return
    yield from _compare_sets("train", before.train, after.train)
    yield from _compare_sets("validation", before.validation, after.validation)


_NO_SET = HeaderSet(id="", content_digest="", cases={})


def _compare_sets(name: str, before: HeaderSet, after: HeaderSet) -> Iterator[str]:
    if before.id != after.id:
        yield f"{name}: the eval set was {before.id!r} and is now {after.id!r}"
    changed = [
        *(f"case {each!r} was removed" for each in before.cases if each not in after.cases),
        *(f"case {each!r} is new" for each in after.cases if each not in before.cases),
        *(f"case {each!r} was changed" for each, was in before.cases.items() if was != after.cases.get(each, was)),
    ]
    if changed:
        yield f"{name}: {join_names(changed, limit=MAX_NAMED)}"
    elif list(before.cases) != list(after.cases):
        yield f"{name}: the order of the cases has changed"
