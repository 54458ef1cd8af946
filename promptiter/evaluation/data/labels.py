"""Labels: answers that people have judged, from a CSV file, to check a judge with.

The columns are `input` (what the user asked), `output` (the answer that was judged) and `label` (the verdict of a
person). `expected` is the reference, if there is one. Instead of `input`, `case` may name a case of an eval set; its
input and reference are then those of the case. All other columns are ignored.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from promptiter.errors import EvalSetError, nearest
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.user_files import Location
from promptiter.wording import plural, shorten

MIN_LABELS = 10
"""Fewer labels say too little about a judge."""

PASSING = ("pass", "passed", "true", "yes", "valid", "correct", "good", "ok", "1")
FAILING = ("fail", "failed", "false", "no", "invalid", "incorrect", "wrong", "bad", "0")

_COLUMNS = ("case", "input", "output", "expected", "label")
_OTHER_NAMES = {"reference": "expected", "answer": "output", "response": "output", "question": "input"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAnswer:
    """An answer to a case, and its label from 0 to 1."""

    case: EvalCase
    output: str
    label: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSet:
    """Answers that people have judged. `is_graded`: with grades, not only as passed or failed.

    `repeated` rows of the file had an answer and a label that another one has, and are left out.
    """

    answers: tuple[LabelledAnswer, ...]
    is_graded: bool = False
    repeated: int = 0
    source: str = field(default="labels", compare=False)

    def __post_init__(self) -> None:
        if len(self.answers) < MIN_LABELS:
            raise EvalSetError(
                f"{self.source}: has {plural(len(self.answers), 'label')}; a judge is checked with at least "
                f"{MIN_LABELS}, better with 50 or more"
            )
        if len({answer.label for answer in self.answers}) < 2:
            raise EvalSetError(
                f"{self.source}: all labels are the same, so agreement beyond chance cannot be computed; label answers "
                "that pass and answers that fail"
            )

    @property
    def contradicted(self) -> int:
        """The number of answers with several labels."""
        found = Counter((answer.case.turns, answer.output) for answer in self.answers)
        return sum(count > 1 for count in found.values())


def load_labels(
    file: str | os.PathLike[str],
    *,
    cases: Iterable[EvalCase] = (),
    scale: tuple[float, float] | None = None,
) -> LabelSet:
    """Read a CSV file of labels. `cases` are those that the column `case` may name.

    Labels are words such as `pass` and `fail`, or numbers from 0 to 1. `scale` is the lowest and the highest grade of
    another scale, such as (1, 5).
    """
    path = Path(file)
    text = read_utf8(path)
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True)
    try:
        columns = {name: _rename(name) for name in reader.fieldnames or ()}
        _check_columns([_rename(name) for name in reader.fieldnames or ()], Location(str(path), line=1))
        known = {case.id: case for case in cases}
        rows = []
        for row in reader:
            location = Location(str(path), line=reader.line_num)
            rows.append((location, {columns[name]: cell or "" for name, cell in row.items() if name in columns}))
    except csv.Error as error:
        raise EvalSetError(
            f"{path}: is not a valid CSV file: {error}; quote cells that hold commas or quotes"
        ) from error
    labels = [_read_label(row["label"], location, scale) for location, row in rows]
    answers = [
        LabelledAnswer(case=_find_case(row, location, known), output=row["output"], label=label)
        for (location, row), label in zip(rows, labels, strict=True)
    ]
    is_graded = any(label not in (0.0, 1.0) for label in labels)
    known_answers = {(answer.case.turns, answer.output, answer.label): answer for answer in reversed(answers)}
    different = tuple(known_answers.values())[::-1]
    repeated = len(answers) - len(different)
    return LabelSet(answers=different, is_graded=is_graded, repeated=repeated, source=str(path))


def read_utf8(path: Path) -> str:
    """The text of a file that people wrote. Raises EvalSetError if it cannot be read, or has another encoding."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise EvalSetError(f"{str(path)!r} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise EvalSetError(f"{str(path)!r} is not UTF-8; save it as UTF-8") from error


def _rename(column: str) -> str:
    name = column.strip().lower()
    return _OTHER_NAMES.get(name, name)


def _check_columns(names: Sequence[str], header: Location) -> None:
    for twice in {name for name in names if name in _COLUMNS and names.count(name) > 1}:
        raise EvalSetError(f"{header}: the column {twice!r} occurs twice; remove one")
    needed = ["output", "label", *(() if "case" in names else ("input",))]
    if missing := [name for name in needed if name not in names]:
        for sign, name in ((";", "semicolons"), ("\t", "tabs")):
            if len(names) == 1 and sign in names[0]:
                raise EvalSetError(f"{header}: the cells are separated by {name}; save the file with commas")
        found = ", ".join(map(repr, names)) or "nothing"
        raise EvalSetError(
            f"{header}: there is no column {' or '.join(map(repr, missing))}, only {found}; the columns are "
            "input (or case, the id of a case), output, label, and expected if there are references"
        )


def _read_label(written: str, location: Location, scale: tuple[float, float] | None) -> float:
    word = written.strip().lower()
    if scale is None and word in PASSING:
        return 1.0
    if scale is None and word in FAILING:
        return 0.0
    low, high = scale or (0.0, 1.0)
    try:
        grade = float(word)
    except ValueError:
        wanted = f"a number from {low:g} to {high:g}"
        raise EvalSetError(
            f"{location}: the label {shorten(written)} is not known; write "
            f"{wanted if scale is not None else f'pass or fail, or {wanted}'}"
        ) from None
    if not low <= grade <= high:
        advice = (
            "give the lowest and the highest grade as the scale, such as --scale 1-5" if scale is None else "correct it"
        )
        raise EvalSetError(f"{location}: the label {grade:g} is not from {low:g} to {high:g}; {advice}")
    return (grade - low) / (high - low)


def _find_case(row: Mapping[str, str], location: Location, known: Mapping[str, EvalCase]) -> EvalCase:
    """The case that a row is about: one of the known ones, or one made from its cells."""
    name, question, reference = row.get("case", ""), row.get("input", ""), row.get("expected") or None
    if name and not question:
        if name not in known:
            similar = nearest(name, list(known))
            raise EvalSetError(
                f"{location}: there is no case {name!r}{similar} in the eval sets; give the eval set that has it, or "
                "add a column 'input'"
            )
        case = known[name]
        if len(case.turns) != 1:
            raise EvalSetError(f"{location}: case {name!r} has {len(case.turns)} turns; label answers to one question")
        return case
    if not question:
        raise EvalSetError(f"{location}: the input is empty; write what the user asked")
    return EvalCase(id=name or str(location), turns=(Turn(user=question, expected=reference),))
