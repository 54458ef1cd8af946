"""Plain cases: rows with `input` and `expected`, from JSON, JSON lines, CSV or YAML.

A row may also have `id`, `metadata`, `state`, `context` (messages) and `tool_calls`, and several exchanges as
`turns: [{input, expected, tool_calls}]`. A CSV file has the columns `input`, `expected`, `id`, `metadata` (JSON text)
and `metadata.NAME`. A row without an id is called `case-N` after its position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import orjson

from promptiter.errors import nearest
from promptiter.evaluation.data.case import EvalCase, ExpectedToolCall, Turn
from promptiter.evaluation.data.content import read_messages
from promptiter.evaluation.data.document import Fields, Item, ReadSet
from traces.errors import Place
from traces.model import Json

_TURN = ("input", "expected", "tool_calls")
_ROW = ("id", *_TURN, "turns", "metadata", "state", "context")
_COLUMNS = ("id", "input", "expected", "metadata")
_CELL = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",\r\n][^,\r\n]*)?)(,|\r\n|\r|\n|\Z)')


def read_rows(document: Item, *, name: str) -> ReadSet:
    """The cases of a list of rows, or of `{id?, name?, description?, cases: [row, …]}`."""
    if isinstance(document.value, list):
        return ReadSet(id=name, source=document, cases=_cases(document.elements()))
    fields = document.fields(("id", "name", "description", "cases"))
    return ReadSet(
        id=_id(fields) or name,
        source=fields.need("cases"),
        cases=_cases(fields.need("cases").elements()),
        name=fields.text("name"),
        description=fields.text("description"),
    )


def read_lines(text: str, *, file: str, name: str) -> ReadSet:
    """The cases of JSON lines."""
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line or line.isspace():
            continue
        row = Item(None, Place(file, line=number))
        try:
            rows.append(Item(orjson.loads(line), row.place))
        except orjson.JSONDecodeError as error:
            raise row.wrong(
                f"is not valid JSON: {error.msg} at column {error.colno}; write one object a line"
            ) from error
    return ReadSet(id=name, source=Item(None, Place(file)), cases=_cases(rows))


def read_csv(text: str, *, file: str, name: str) -> ReadSet:
    """The cases of a CSV file with a header. An empty cell says nothing, a quoted empty one (`""`) is empty text."""
    rows = _csv_rows(text, file)
    header, columns = next(rows, (Item(None, Place(file)), []))
    names = [(column or "").strip() for column in columns]
    _check_header(header, names)
    cases = []
    for row, cells in rows:
        if len(cells) != len(names):
            raise row.wrong(f"has {len(cells)} cells, and the header has {len(names)}; quote cells that hold commas")
        filled = {column: cell for column, cell in zip(names, cells, strict=True) if cell is not None}
        cases.append(Item(_row_of_cells(filled, row), row.place))
    return ReadSet(id=name, source=Item(None, Place(file)), cases=_cases(cases))


def _cases(rows: Sequence[Item]) -> list[tuple[Item, EvalCase]]:
    return [(row, _case(row, position)) for position, row in enumerate(rows, start=1)]


def _case(row: Item, position: int) -> EvalCase:
    fields = row.fields(_ROW)
    return EvalCase(
        id=_id(fields) or f"case-{position}",
        turns=_turns(fields),
        context=read_messages(fields.elements("context")),
        state=fields.mapping("state"),
        metadata=fields.mapping("metadata"),
    )


def _id(fields: Fields) -> str:
    """The id as text; YAML and JSON may write it as a whole number."""
    written = fields.value("id")
    return str(written) if isinstance(written, int) and not isinstance(written, bool) else fields.text("id")


def _turns(fields: Fields) -> tuple[Turn, ...]:
    if "turns" not in fields:
        return (_turn(fields, turn_id=""),)
    if extra := next((name for name in _TURN if name in fields), None):
        raise fields.need(extra).wrong("stands beside 'turns'; move it into one of the turns")
    rows = [item.fields((*_TURN, "id")) for item in fields.elements("turns")]
    turns = tuple(_turn(row, turn_id=_id(row)) for row in rows)
    if not turns:
        raise fields.need("turns").wrong("is empty; write at least one turn")
    return turns


def _turn(fields: Fields, *, turn_id: str) -> Turn:
    expected, calls = fields.get("expected"), fields.get("tool_calls")
    return Turn(
        user=fields.need("input").text(),
        expected=None if expected is None else expected.json_text(),
        expected_tool_calls=None if calls is None else tuple(_tool_call(call) for call in calls.elements()),
        id=turn_id,
    )


def _tool_call(item: Item) -> ExpectedToolCall:
    fields = item.fields(("id", "name", "arguments", "result"))
    return ExpectedToolCall(
        name=fields.need("name").text(),
        arguments=fields.value("arguments"),
        result=fields.value("result"),
        id=fields.text("id") if "id" in fields else None,
    )


def _csv_rows(text: str, file: str) -> Iterator[tuple[Item, list[str | None]]]:
    """The rows with their first line. Written by hand: the csv module hides whether an empty cell was quoted."""
    position, line = 0, 1
    cells: list[str | None] = []
    row = Item(None, Place(file, line=line))
    while position < len(text) or cells:
        cell = _CELL.match(text, position)
        if cell is None:
            raise row.wrong('holds a quote that is not closed, or text after a closing quote; write "" for a quote')
        quoted, plain, separator = cell.groups()
        cells.append(plain if quoted is None else quoted.replace('""', '"'))
        line += len(re.findall(r"\r\n|\r|\n", cell[0]))
        position = cell.end()
        if separator != ",":
            if any(written is not None and not written.isspace() for written in cells):
                yield row, cells
            cells, row = [], Item(None, Place(file, line=line))


def _check_header(header: Item, names: Sequence[str]) -> None:
    for name in names:
        if name not in _COLUMNS and not name.startswith("metadata."):
            raise header.wrong(
                f"{name!r} is not a known column{nearest(name, _COLUMNS)}; known are {', '.join(_COLUMNS)} and "
                "metadata.NAME for anything else"
            )
        if names.count(name) > 1:
            raise header.wrong(f"the column {name!r} occurs twice; remove one")
    if "input" not in names:
        listed = ", ".join(map(repr, names)) or "empty cells"
        raise header.wrong(f"there is no column 'input', only {listed}; name the columns in the first line")


def _row_of_cells(cells: dict[str, str], row: Item) -> dict[str, Json]:
    metadata: dict[str, Json] = {}
    if written := cells.pop("metadata", None):
        try:
            metadata = Item(orjson.loads(written), row.place, "metadata").mapping()
        except orjson.JSONDecodeError as error:
            raise row.wrong(f"metadata: is not valid JSON: {error.msg}; got {written!r}") from error
    fields: dict[str, Json] = {}
    for column, cell in cells.items():
        if not column.startswith("metadata."):
            fields[column] = cell
            continue
        name = column.removeprefix("metadata.")
        if name in metadata:
            raise row.wrong(f"metadata {name!r} is given by the column 'metadata' and by {column!r}; keep one of them")
        metadata[name] = cell
    return fields | {"metadata": metadata}
