"""judge_checks.json, beside the runs of a project: which judges were checked against people, and how they agreed.

A judge is known by its definition: its prompt and rubrics, models, options and threshold. If one of them changes, the
judge has not been checked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from promptiter.evaluation.judge_check import JudgeCheck
from promptiter.wording import plural
from traces.files import write_atomically

FILE_NAME = "judge_checks.json"
SCHEMA_VERSION = 1

POOR_AGREEMENT = 0.4
"""Kappa below this is commonly called poor to fair; the summary of a run warns of it."""


class CheckedJudge(BaseModel):
    """The result of one check. `kappa` is None if it was undefined."""

    model_config = ConfigDict(frozen=True)

    metric: str
    answers: int
    kappa: float | None
    low: float | None = None
    high: float | None = None


class _CheckFile(BaseModel):
    schema_version: int = SCHEMA_VERSION
    checks: dict[str, CheckedJudge] = {}


def remember_check(runs: str | os.PathLike[str], check: JudgeCheck) -> CheckedJudge:
    """Add a check to the file in the folder of the runs, and return the one that is kept for this judge.

    An earlier one with more labels is kept, since it says more.
    """
    folder, kappa, known = Path(runs), check.kappa, read_checks(runs)
    earlier = known.get(check.definition)
    if earlier is not None and earlier.answers > check.answers:
        return earlier
    found = CheckedJudge(
        metric=check.metric,
        answers=check.answers,
        kappa=kappa.value if kappa is not None else None,
        low=kappa.low if kappa is not None else None,
        high=kappa.high if kappa is not None else None,
    )
    folder.mkdir(parents=True, exist_ok=True)
    document = _CheckFile(checks={**known, check.definition: found})
    with write_atomically(folder / FILE_NAME) as file:
        file.write(orjson.dumps(document.model_dump(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return found


def read_checks(runs: str | os.PathLike[str]) -> dict[str, CheckedJudge]:
    """The checks by the definition of the judge; none if there is no such file, or it is damaged."""
    try:
        return _CheckFile.model_validate_json((Path(runs) / FILE_NAME).read_bytes()).checks
    except (OSError, ValidationError):
        return {}


def describe_judges(judges: Mapping[str, str], checks: Mapping[str, CheckedJudge]) -> tuple[str, ...]:
    """What a verdict that rests on these judges should say: which were not checked, and which agree poorly with people.

    `judges` are definitions by the name of the metric.
    """
    notes = []
    for metric, definition in judges.items():
        found = checks.get(definition)
        if found is None:
            notes.append(
                f"the verdict rests on the judge of {metric}, which was never compared with people; "
                "`promptiter check --judge labels.csv` does that"
            )
        elif found.kappa is None or found.kappa < POOR_AGREEMENT:
            kappa = "undefined" if found.kappa is None else f"{found.kappa:.2f}"
            labels = plural(found.answers, "label")
            poorly = f"agrees poorly with people: kappa {kappa} on {labels}, below {POOR_AGREEMENT:g}"
            notes.append(f"the verdict rests on the judge of {metric}, which {poorly}")
    return tuple(notes)
