"""Plain cases: rows with `input` and `expected`, from JSON, JSON lines, CSV or YAML.

A row may also have `id`, `metadata`, `state`, `context` (messages) and `tool_calls`, or several exchanges as
`turns: [{input, expected, tool_calls}]`. As in HoloDeck's files, an id may be called `test_name` or `name`, a reference
`ground_truth`, and turns may have a `turn_config` for graders and names of `expected_tools`. A CSV file has the columns
`input`, `expected`, `id`, `metadata` (JSON text) and `metadata.NAME`. A row without an id is called `case-N` after its
position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

import orjson
from pydantic import BeforeValidator, Field, model_validator

from promptiter.errors import EvalSetError, nearest
from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Turn
from promptiter.evaluation.data.content import JsonText, Messages, read_messages, write_call, write_messages
from promptiter.llm.messages import Message
from promptiter.user_files import FileObject, Location, read_object, spell
from traces.model import Json

_COLUMNS = ("id", "input", "expected", "metadata")
_CELL = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",\r\n][^,\r\n]*)?)(,|\r\n|\r|\n|\Z)')

_Id = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""YAML and JSON may write an id as a whole number."""


class _ToolCall(FileObject):
    id: str | None = None
    name: str
    arguments: Any = None
    result: Any = None


class _Answer(FileObject):
    expected: JsonText | None = Field(default=None, validation_alias=spell("expected", "ground_truth"))
    tool_calls: list[_ToolCall] | None = None
    turn_config: dict[str, Any] = Field(default_factory=dict)
    expected_tools: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _refuse_own_metrics(cls, value: Any) -> Any:
        """HoloDeck's cases may have metrics of their own, which are refused rather than ignored."""
        if isinstance(value, dict) and "evaluations" in value:
            raise ValueError(
                "'evaluations': metrics of a single case are not supported; every metric scores every case. Remove "
                "the key, and list the metrics for all cases"
            )
        return value

    def to_turn(self, question: str, *, turn_id: str = "") -> Turn:
        calls = self.tool_calls
        return Turn(
            user=question,
            expected=self.expected,
            expected_tool_calls=None if calls is None else tuple(ExpectedToolCall(**dict(call)) for call in calls),
            id=turn_id,
        )


class _Turn(_Answer):
    id: _Id = ""
    input: str


class _Row(_Answer):
    id: _Id = Field(default="", validation_alias=spell("id", "test_name", "name"))
    input: str | None = None
    turns: list[_Turn] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    state: dict[str, Any] = Field(default_factory=dict)
    context: Messages = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_turns(self) -> Self:
        if self.turns is None:
            if self.input is None:
                raise ValueError("'input' is missing; add it")
            return self
        given = {"input": self.input, "expected": self.expected, "tool_calls": self.tool_calls}
        if extra := next((name for name, value in given.items() if value is not None), None):
            raise ValueError(f"{extra!r} is given next to 'turns'; move it into one of the turns")
        if not self.turns:
            raise ValueError("'turns' is empty; write at least one turn")
        return self

    def to_case(self, default_id: str) -> EvalCase:
        if self.turns is None:
            turns: tuple[Turn, ...] = (self.to_turn(self.input or ""),)
        else:
            turns = tuple(turn.to_turn(turn.input, turn_id=turn.id) for turn in self.turns)
        return EvalCase(
            id=self.id or default_id,
            turns=turns,
            context=read_messages(self.context),
            state=self.state,
            metadata={**self.metadata, **self._describe_turns()},
        )

    def _describe_turns(self) -> dict[str, Json]:
        """What only graders read: a list with an entry per turn, if there is any."""
        answers: Sequence[_Answer] = self.turns or (self,)
        found: dict[str, Json] = {
            "turn_config": [each.turn_config for each in answers],
            "expected_tools": [each.expected_tools for each in answers],
        }
        return {name: entries for name, entries in found.items() if any(entries)}


class _Rows(FileObject):
    id: _Id = ""
    name: str = ""
    description: str = ""
    cases: list[Any]


def read_rows(document: Json, location: Location, *, name: str) -> tuple[EvalSet, list[Location]]:
    """The cases of a list of rows, or of `{id?, name?, description?, cases: [row, …]}`, and where each one is."""
    if isinstance(document, list):
        return _read_cases({location.below(index): row for index, row in enumerate(document)}, set_id=name)
    header = read_object(_Rows, document, location, error=EvalSetError)
    rows = {location.below("cases", index): row for index, row in enumerate(header.cases)}
    return _read_cases(rows, set_id=header.id or name, name=header.name, description=header.description)


def read_lines(text: str, *, file: str, name: str) -> tuple[EvalSet, list[Location]]:
    """The cases of JSON lines, and where each one is."""
    rows: dict[Location, Json] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line or line.isspace():
            continue
        location = Location(file, line=number)
        try:
            rows[location] = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise EvalSetError(
                f"{location}: is not valid JSON: {error.msg} at column {error.colno}; write one object a line"
            ) from error
    return _read_cases(rows, set_id=name)


def write_lines(cases: Iterable[EvalCase]) -> bytes:
    """The cases as JSON lines that `read_lines` reads. They have turns: scenarios and recordings have no such rows."""
    return b"".join(_dump_row(_write_row(case)) + b"\n" for case in cases)


def read_csv(text: str, *, file: str, name: str) -> tuple[EvalSet, list[Location]]:
    """The cases of a CSV file with a header. An empty cell is left out, a quoted empty one (`""`) is empty text."""
    lines = _read_csv_lines(text, file)
    header, columns = next(lines, (Location(file), []))
    names = [(column or "").strip() for column in columns]
    _check_header(names, header)
    rows: dict[Location, Json] = {}
    for location, cells in lines:
        if len(cells) != len(names):
            raise EvalSetError(
                f"{location}: has {len(cells)} cells, and the header has {len(names)}; quote cells that hold commas"
            )
        filled = {column: cell for column, cell in zip(names, cells, strict=True) if cell is not None}
        rows[location] = _read_cells(filled, location)
    return _read_cases(rows, set_id=name)


def _read_cases(
    rows: Mapping[Location, Json], *, set_id: str, name: str = "", description: str = ""
) -> tuple[EvalSet, list[Location]]:
    cases = tuple(
        read_object(_Row, row, location, error=EvalSetError).to_case(f"{set_id}-{position}")
        for position, (location, row) in enumerate(rows.items(), start=1)
    )
    return EvalSet(id=set_id, cases=cases, name=name, description=description), list(rows)


def _write_row(case: EvalCase) -> dict[str, Json]:
    turns = [_write_turn(turn) for turn in case.turns]
    row: dict[str, Json] = {"id": case.id, "context": _write_context(case.context)}
    row |= turns[0] if len(turns) == 1 and "id" not in turns[0] else {"turns": turns}
    row |= {"state": dict(case.state), "metadata": dict(case.metadata)}
    return {key: value for key, value in row.items() if value or key not in ("context", "state", "metadata")}


def _write_turn(turn: Turn) -> dict[str, Json]:
    calls = turn.expected_tool_calls
    listed = (
        None
        if calls is None
        else [write_call(call.id, call.name, arguments=call.arguments, result=call.result) for call in calls]
    )
    row = {"id": turn.id or None, "input": turn.user, "expected": turn.expected, "tool_calls": listed}
    return {key: value for key, value in row.items() if value is not None}


def _write_context(messages: Sequence[Message]) -> list[Json]:
    if all(message.is_plain for message in messages):
        return [{"role": message.role, "content": message.content} for message in messages]
    return write_messages(messages)


def _dump_row(row: dict[str, Json]) -> bytes:
    try:
        return orjson.dumps(row)
    except TypeError:  # a number beyond 64 bits, half a surrogate pair
        return json.dumps(row, ensure_ascii=False, default=repr).encode(errors="replace")


def _read_csv_lines(text: str, file: str) -> Iterator[tuple[Location, list[str | None]]]:
    """The rows with their first line. Written by hand: the csv module hides whether an empty cell was quoted."""
    position, line = 0, 1
    cells: list[str | None] = []
    row = Location(file, line=line)
    while position < len(text) or cells:
        cell = _CELL.match(text, position)
        if cell is None:
            raise EvalSetError(
                f'{row}: has a quote that is not closed, or text after a closing quote; write "" for a quote'
            )
        quoted, plain, separator = cell.groups()
        cells.append(plain if quoted is None else quoted.replace('""', '"'))
        line += len(re.findall(r"\r\n|\r|\n", cell[0]))
        position = cell.end()
        if separator != ",":
            if any(written is not None and not written.isspace() for written in cells):
                yield row, cells
            cells, row = [], Location(file, line=line)


def _check_header(names: Sequence[str], header: Location) -> None:
    for name in names:
        if name not in _COLUMNS and not name.startswith("metadata."):
            raise EvalSetError(
                f"{header}: {name!r} is not a known column{nearest(name, _COLUMNS)}; known are {', '.join(_COLUMNS)} "
                "and metadata.NAME for anything else"
            )
        if names.count(name) > 1:
            raise EvalSetError(f"{header}: the column {name!r} occurs twice; remove one")
    if "input" not in names:
        found = ", ".join(map(repr, names)) or "empty cells"
        raise EvalSetError(f"{header}: there is no column 'input', only {found}; name the columns in the first line")


def _read_cells(cells: dict[str, str], row: Location) -> dict[str, Json]:
    """The cells of a line as the row that JSON would have."""
    metadata: dict[str, Json] = {}
    if written := cells.pop("metadata", None):
        try:
            metadata = orjson.loads(written)
        except orjson.JSONDecodeError as error:
            raise EvalSetError(f"{row}: metadata: is not valid JSON: {error.msg}; got {written!r}") from error
    fields: dict[str, Json] = {"metadata": metadata}
    for column, cell in cells.items():
        if not column.startswith("metadata."):
            fields[column] = cell
            continue
        name = column.removeprefix("metadata.")
        if not isinstance(metadata, dict):
            continue
        if name in metadata:
            raise EvalSetError(
                f"{row}: metadata {name!r} is given by the column 'metadata' and by {column!r}; keep one of them"
            )
        metadata[name] = cell
    return fields
