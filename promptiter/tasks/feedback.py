"""Feedback: what people said about runs in production, from a CSV file or JSON lines.

A row names a run by `trace_id`, or a conversation by `conversation_id`, and has at least one of: `rating` (a thumb or a
word), `score` (a number), `comment` (what was wrong), `expected` (what the answer should have been).
"""

from __future__ import annotations

import base64
import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path

from promptiter.errors import EvalSetError, nearest
from promptiter.evaluation.data.labels import FAILING, PASSING, read_utf8
from promptiter.grouping import group_by
from promptiter.user_files import Location
from promptiter.wording import join_names, shorten
from traces import ExecutionTrace
from traces.model import Json
from traces.otel.recover.build import TRACE_IDS
from traces.otel.recover.judgements import JUDGEMENTS

COLUMNS = ("trace_id", "conversation_id", "rating", "score", "comment", "expected")
_OTHER_NAMES = {
    "trace_id": ("trace", "traceid", "run_id", "runid"),
    "conversation_id": (
        "conversation",
        "conversationid",
        "session_id",
        "sessionid",
        "session",
        "thread_id",
        "threadid",
    ),
    "rating": ("thumbs", "thumb", "feedback", "label", "verdict", "vote", "reaction"),
    "score": ("value", "stars", "grade"),
    "comment": ("text", "reason", "explanation", "note", "remark", "message"),
    "expected": ("correction", "reference", "corrected", "expected_output", "ideal"),
}
_NAMES = {other: name for name, others in _OTHER_NAMES.items() for other in (name, *others)}
_GOOD = {*PASSING, "up", "+1", "+", "👍", "like", "liked", "thumbs_up", "thumbsup", "positive", "satisfied", "helpful"}
_BAD = {*FAILING, "down", "-1", "-", "👎", "dislike", "disliked", "thumbs_down", "thumbsdown", "negative"}
_BAD |= {"dissatisfied", "unhelpful"}

_SCALES = ((1.0, 0.5), (5.0, 4.0), (10.0, 7.0), (100.0, 70.0))
"""The largest score of a scale, and the least that is taken for a good one, if nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What was said about one run. `is_good` is None if it only has a comment or a correction of a run."""

    trace_id: str = ""
    conversation_id: str = ""
    is_good: bool | None = None
    score: float | None = None
    comment: str = ""
    expected: str | None = None


class FeedbackFile:
    """All feedback of a file. `good_from` is the least score that counts as good, if there are scores."""

    def __init__(self, rows: Iterable[Feedback], *, good_from: float | None = None, source: str = "feedback") -> None:
        self.rows = tuple(rows)
        self.good_from = good_from
        self.source = source
        self._by_trace = group_by((row for row in self.rows if row.trace_id), lambda row: row.trace_id)
        talks = (row for row in self.rows if not row.trace_id)
        self._by_conversation = group_by(talks, lambda row: row.conversation_id)

    def find(self, trace_ids: Iterable[str], conversation_id: str | None) -> Feedback | None:
        """What was said about a run; of several rows, those that found something wrong count."""
        rows = self.list_rows(trace_ids, conversation_id)
        return join_rows(rows) if rows else None

    def list_rows(self, trace_ids: Iterable[str], conversation_id: str | None = None) -> list[Feedback]:
        """The rows about a run; those about its whole conversation count if there are no others."""
        known = dict.fromkeys(map(normalize_id, trace_ids))
        rows = [row for trace_id in known for row in self._by_trace.get(trace_id, ())]
        if not rows and conversation_id is not None:
            rows = list(self._by_conversation.get(conversation_id, ()))
        return rows


def load_feedback(file: str | os.PathLike[str], *, good_from: float | None = None) -> FeedbackFile:
    """Read a file of feedback: CSV, or JSON lines if its name ends in .jsonl or .json.

    `good_from` is the least score that counts as good. By default it depends on the scale: 0.5 of 1, 4 of 5, 7 of 10,
    70 of 100.
    """
    path = Path(file)
    text = read_utf8(path)
    rows = list(_read_json(text, path) if path.suffix in (".json", ".jsonl") else _read_csv(text, path))
    if not rows:
        raise EvalSetError(f"{path}: has no rows of feedback")
    scores = [score for location, row in rows if (score := _read_score(row, location)) is not None]
    largest = max(map(abs, scores), default=0.0)
    if good_from is None and largest:
        good_from = next((least for most, least in _SCALES if largest <= most), None)
        if good_from is None:
            raise EvalSetError(f"{path}: has scores up to {largest:g}; say which are good, with --good-from")
    return FeedbackFile(
        rows=tuple(_read_row(row, location, good_from) for location, row in rows),
        good_from=good_from if largest else None,
        source=str(path),
    )


def read_judgements(trace: ExecutionTrace) -> Feedback | None:
    """What the spans of a run say about it themselves: evaluations and annotations with a score or a label."""
    rows = []
    for each in trace.attributes.get(JUDGEMENTS) or ():
        score, word = each.get("score"), _normalize_word(each.get("label") or "")
        is_good = word in _GOOD if word in _GOOD | _BAD else None
        if is_good is None and isinstance(score, int | float) and 0 <= score <= 1:
            is_good = score >= _SCALES[0][1]
        if is_good is not None:
            comment = ": ".join(str(each[name]) for name in ("name", "explanation") if each.get(name))
            rows.append(Feedback(trace_id=trace.id, is_good=is_good, comment=comment))
    return join_rows(rows) if rows else None


def list_trace_ids(trace: ExecutionTrace) -> list[str]:
    """The ids under which people know a run: it may be spread over several traces of OpenTelemetry."""
    return [trace.id, *(trace.attributes.get(TRACE_IDS) or ())]


def normalize_id(trace_id: str) -> str:
    """A trace id as OpenTelemetry writes it: exports and people also write `0x…`, capitals, the dashes of a UUID, or
    base64.
    """
    plain = trace_id.strip().lower().removeprefix("0x")
    bare = plain.replace("-", "")
    if re.fullmatch(r"[A-Za-z0-9+/]{22}==", trace_id.strip()):  # as protobuf's own JSON has it
        return base64.b64decode(trace_id).hex()
    return bare if re.fullmatch(r"[0-9a-f]{32}", bare) else trace_id.strip()


_Row = tuple[Location, Mapping[str, Json]]


def _read_csv(text: str, path: Path) -> Iterator[_Row]:
    lines = text.splitlines(keepends=True)
    skipped = 1 if lines and lines[0].lower().startswith("sep=") else 0  # Excel says so which character separates cells
    sample = lines[skipped] if len(lines) > skipped else ""
    delimiter = max(",;\t", key=sample.count)
    reader = csv.DictReader(lines[skipped:], delimiter=delimiter, strict=True)
    try:
        names = _name_columns(reader.fieldnames or (), Location(str(path), line=1 + skipped))
        for row in reader:
            location = Location(str(path), line=reader.line_num + skipped)
            found = {names[column]: cell for column, cell in row.items() if column in names and cell}
            if delimiter != "," and "score" in found:
                found["score"] = found["score"].replace(",", ".")
            yield location, found
    except csv.Error as error:
        raise EvalSetError(f"{path}: is not a valid CSV file: {error}; quote cells that hold commas") from error


def _read_json(text: str, path: Path) -> Iterator[_Row]:
    try:
        if text.lstrip().startswith("["):
            listed = list(enumerate(json.loads(text), 1))
        else:
            listed = [(at, json.loads(line)) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
        for number, row in listed:
            location = Location(str(path), line=number)
            if not isinstance(row, dict):
                raise EvalSetError(f"{location}: is {shorten(row)}; give an object with {join_names(COLUMNS)}")
            names = _name_columns(row, location)
            yield location, {names[key]: value for key, value in row.items() if key in names and value is not None}
    except ValueError as error:
        raise EvalSetError(f"{path}: is not valid JSON: {error}") from error


def _name_columns(columns: Iterable[str], location: Location) -> dict[str, str]:
    keys = {column: _normalize_word(column) for column in columns}
    names = {column: key for column, key in keys.items() if key in COLUMNS}
    for column, key in keys.items():
        if (name := _NAMES.get(key)) is not None and name not in names.values():
            names[column] = name
    known = set(names.values())
    if not known & {"trace_id", "conversation_id"} or not known - {"trace_id", "conversation_id"}:
        near = "".join(nearest(str(column), COLUMNS) for column in columns)[:200]
        raise EvalSetError(
            f"{location}: has {join_names([str(each) for each in columns]) or 'no columns'}{near}; needed are trace_id "
            "or conversation_id, and one of rating, score, comment, expected"
        )
    return names


def _read_row(row: Mapping[str, Json], location: Location, good_from: float | None) -> Feedback:
    trace_id, conversation_id = str(row.get("trace_id", "")), str(row.get("conversation_id", ""))
    if not trace_id and not conversation_id:
        raise EvalSetError(f"{location}: has neither a trace_id nor a conversation_id")
    score = _read_score(row, location)
    is_good = _read_rating(row.get("rating"), location)
    comment = str(row.get("comment", "")).strip()
    if is_good is None and score is not None and good_from is not None:
        is_good = score >= good_from
    if is_good is None and (comment or "expected" in row):
        is_good = False
    expected = row.get("expected")
    return Feedback(
        trace_id=normalize_id(trace_id) if trace_id else "",
        conversation_id=conversation_id,
        is_good=is_good,
        score=score,
        comment=comment,
        expected=None if expected is None else expected if isinstance(expected, str) else json.dumps(expected),
    )


def _normalize_word(word: object) -> str:
    """`Thumbs Up` and `thumbs-up` as `thumbs_up`; signs as they are."""
    plain = str(word).strip().lower()
    return re.sub(r"(?<=\w)[\s.-]+(?=\w)", "_", plain)


def _read_score(row: Mapping[str, Json], location: Location) -> float | None:
    given = row.get("score")
    if given is None or given == "":
        return None
    try:
        score = float(given)
    except (TypeError, ValueError):
        score = nan
    if not isfinite(score):
        raise EvalSetError(f"{location}: the score {shorten(given)} is not a number")
    return score


def _read_rating(given: Json, location: Location) -> bool | None:
    word = _normalize_word(given) if given is not None else ""
    if not word or word in ("none", "null", "neutral"):
        return None
    if word in _GOOD or word in _BAD:
        return word in _GOOD
    raise EvalSetError(f"{location}: the rating {shorten(given)} is not known; write up or down, good or bad, 1 or 0")


def join_rows(rows: Sequence[Feedback]) -> Feedback:
    """What several people said about one run: those who found something wrong count."""
    bad = [row for row in rows if row.is_good is False]
    chosen = bad or [row for row in rows if row.is_good] or rows
    comments = dict.fromkeys(row.comment for row in chosen if row.comment)
    first = chosen[0]
    return Feedback(
        trace_id=first.trace_id,
        conversation_id=first.conversation_id,
        is_good=first.is_good,
        score=min((row.score for row in chosen if row.score is not None), default=None),
        comment="\n".join(comments),
        expected=next((row.expected for row in chosen if row.expected is not None), None),
    )
