"""Reads the JSON that a scorer prints: its score, its metrics, and the cases or steps that failed.

    {"score": 0.75, "metrics": {"violation_count": 1}, "cases": [{"name": "plural", "passed": false, "expected": "mice",
     "actual": "mouses"}]}

It may be all of the output, or its last line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from promptiter.errors import CommandError, nearest
from promptiter.evaluation.metrics.judge_prompts import truncate_middle
from promptiter.tasks.files.task import OutputFields
from promptiter.wording import shorten
from traces.model import Json

SHOWN_REASON = 300
"""The reason of a failed case is cut to this many characters."""

NAMES = ("name", "id", "case", "step", "test")
REASONS = ("reason", "message", "error")
ACTUAL = ("actual", "output", "got")
PASSED_WORDS = {"passed": True, "pass": True, "ok": True, "failed": False, "fail": False, "error": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOutcome:
    """A case or a step that the scorer names: its score from 0 to 1, if it says, and why it failed."""

    name: str
    score: float | None
    reason: str = ""
    expected: Json = None
    actual: Json = None
    file: str = ""

    @property
    def has_failed(self) -> bool:
        return self.score is None or self.score < 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerOutput:
    score: float | None
    metrics: Mapping[str, float]
    cases: tuple[CaseOutcome, ...] = ()


def read_output(stdout: bytes, fields: OutputFields, *, name: str) -> ScorerOutput:
    """Read what a scorer printed. CommandError says what is missing."""
    document = _parse(stdout, name)
    metrics = dict(_read_metrics(document, fields, name))
    found, score = _find(document, fields.score), None
    if found is not None:
        score = _to_number(found)
        if score is None:
            raise CommandError(f"{name}: the field {fields.score!r} is {shorten(found)}; print a finite number")
    elif not metrics and fields.score in document:
        raise CommandError(f"{name}: the field {fields.score!r} is null; print a finite number")
    elif not metrics:
        known = [str(key) for key in document]
        raise CommandError(
            f"{name}: its output has neither {fields.score!r} nor numbers in {fields.metrics!r}"
            f"{nearest(fields.score, known)}; print such an object, or correct parse in the task file"
        )
    return ScorerOutput(score=score, metrics=metrics, cases=tuple(_read_cases(document, fields)))


def _parse(stdout: bytes, name: str) -> Mapping[str, Json]:
    text = stdout.strip()
    for candidate in (text, text.rpartition(b"\n")[2]):
        try:
            document = orjson.loads(candidate)
        except orjson.JSONDecodeError:
            if constant := _find_constant(candidate):
                raise CommandError(f"{name}: it printed {constant}, which is not JSON; print finite numbers") from None
            continue
        if isinstance(document, dict):
            return document
    shown = shorten(text.decode(errors="replace"), limit=200) if text else "nothing"
    raise CommandError(f"{name}: it printed {shown}; print a JSON object as the last line of standard output")


def _find_constant(text: bytes) -> str:
    """`NaN`, `Infinity` or `-Infinity` if that is in JSON otherwise, as Python prints it; empty if not."""
    found: list[str] = []
    try:
        json.loads(text, parse_constant=found.append)
    except ValueError:
        return ""
    return next(iter(found), "")


def _read_metrics(document: Mapping[str, Json], fields: OutputFields, name: str) -> Iterator[tuple[str, float]]:
    found = _find(document, fields.metrics)
    if found is None:
        return
    if not isinstance(found, Mapping):
        raise CommandError(f"{name}: the field {fields.metrics!r} is {shorten(found)}; print numbers by name")
    for metric, value in found.items():
        number = _to_number(value)
        if number is not None:
            yield str(metric), number
        elif isinstance(value, float):
            raise CommandError(f"{name}: the metric {metric!r} is {value}; print a finite number")


def _read_cases(document: Mapping[str, Json], fields: OutputFields) -> Iterator[CaseOutcome]:
    cases = _find(document, fields.cases)
    steps, failures = document.get("steps"), document.get("failures")
    for found in (cases, steps):
        if isinstance(found, Mapping):  # {"plural": false, "tense": 0.5}
            found = [{"name": name, "score": value} for name, value in found.items()]
        if isinstance(found, Sequence) and not isinstance(found, str):
            yield from (_read_case(each, number, is_failure=False) for number, each in enumerate(found))
    if isinstance(failures, Sequence) and not isinstance(failures, str):
        yield from (_read_case(each, number, is_failure=True) for number, each in enumerate(failures))


def _read_case(value: Json, number: int, *, is_failure: bool) -> CaseOutcome:
    if not isinstance(value, Mapping):
        return CaseOutcome(
            name=str(number + 1), score=0.0 if is_failure else None, reason=truncate_middle(str(value), SHOWN_REASON)
        )
    reason = next((str(value[key]) for key in REASONS if value.get(key)), "")
    return CaseOutcome(
        name=next((str(value[key]) for key in NAMES if value.get(key) is not None), str(number + 1)),
        score=_read_case_score(value, is_failure=is_failure, has_error=bool(value.get("error"))),
        reason=truncate_middle(reason, SHOWN_REASON),
        expected=value.get("expected"),
        actual=next((value[key] for key in ACTUAL if key in value), None),
        file=str(value.get("file") or ""),
    )


def _read_case_score(value: Mapping[str, Json], *, is_failure: bool, has_error: bool) -> float | None:
    for key in ("score", "passed", "status"):
        given = value.get(key)
        if isinstance(given, str):
            given = PASSED_WORDS.get(given.lower())
        number = _to_number(given)
        if number is not None:
            return min(1.0, max(0.0, number))
    return 0.0 if is_failure or has_error else 1.0


def _find(document: Mapping[str, Json], path: str) -> Json:
    """The value at a name, or at the end of a path of names."""
    if path in document:
        return document[path]
    found: Json = document
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def _to_number(value: Json) -> float | None:
    """A finite number; true counts as 1, false as 0."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
