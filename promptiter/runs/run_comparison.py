"""RunComparison: two runs side by side: what they were given, what they ended with, and where they differ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from promptiter.evaluation.result import Evaluation
from promptiter.runlog.results import RunResult
from promptiter.runs.changed_inputs import find_changed_inputs
from promptiter.runs.header import read_header
from promptiter.runs.summary import RunSummary, read_result, summarize_stored
from traces.model import Json

ChangedIn: TypeAlias = Literal["first", "second", "both_alike", "both_differently"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceComparison:
    """A surface that at least one of the runs changed, with the value that each ended with."""

    surface_id: str
    changed_in: ChangedIn
    first: Json
    second: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs. `inputs` says how those of the second differ from those of the first, one sentence each.

    Of the validation cases that both have, some pass at the end of one run only.
    """

    first: RunSummary
    second: RunSummary
    inputs: tuple[str, ...]
    surfaces: tuple[SurfaceComparison, ...]
    common_cases: int
    only_first_passes: tuple[str, ...]
    only_second_passes: tuple[str, ...]


def compare_runs(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> RunComparison:
    """Compare the runs in two folders, finished or not."""
    folders = Path(first), Path(second)
    results = [read_result(folder) for folder in folders]
    before, after = results
    passes_before, passes_after = (_list_passes(each.accepted) for each in results)
    common = passes_before.keys() & passes_after.keys()
    return RunComparison(
        first=summarize_stored(before, folders[0]),
        second=summarize_stored(after, folders[1]),
        inputs=tuple(find_changed_inputs(*map(read_header, folders))),
        surfaces=tuple(_compare_surfaces(before, after)),
        common_cases=len(common),
        only_first_passes=tuple(sorted(each for each in common if passes_before[each] and not passes_after[each])),
        only_second_passes=tuple(sorted(each for each in common if passes_after[each] and not passes_before[each])),
    )


def _list_passes(evaluation: Evaluation | None) -> dict[str, bool]:
    return {} if evaluation is None else {case.case_id: case.passed for case in evaluation.cases}


def _compare_surfaces(first: RunResult, second: RunResult) -> Iterator[SurfaceComparison]:
    values = [
        {
            change.surface_id: change.after
            for change in each.initial_profile.changes(each.working_profile, each.structure)
        }
        for each in (first, second)
    ]
    for surface_id in sorted(values[0].keys() | values[1].keys()):
        ends = [
            found.get(surface_id, each.initial_profile.value(surface_id, each.structure))
            if surface_id in each.structure.surface_ids
            else None
            for found, each in zip(values, (first, second), strict=True)
        ]
        changed_in: ChangedIn = "first" if surface_id in values[0] else "second"
        if all(surface_id in found for found in values):
            changed_in = "both_alike" if ends[0] == ends[1] else "both_differently"
        yield SurfaceComparison(surface_id=surface_id, changed_in=changed_in, first=ends[0], second=ends[1])
