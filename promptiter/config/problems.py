"""What is wrong with a configuration file, in words: each of pydantic's errors as a sentence with its place.

promptiter.yaml: stop: unknown key 'patiance' (did you mean 'patience'?)
promptiter.yaml: max_rounds: is 'many'; it must be a whole number
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from promptiter.errors import nearest
from promptiter.evaluation.metrics.metric import shown

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


def problems_of(error: ValidationError, root: type[BaseModel], *, source: str) -> list[str]:
    """Each error as a sentence, in the order of the file's keys."""
    return [_problem(each, root, source) for each in error.errors(include_url=False)]


def _problem(error: ErrorDetails, root: type[BaseModel], source: str) -> str:
    if error["type"] == "extra_forbidden":
        return f"{_place(source, error['loc'][:-1])}: {_unknown_key(error['loc'], root)}"
    place = _place(source, error["loc"])
    if error["type"] == "missing":
        return f"{place}: is missing"
    if error["type"] == "value_error":
        return f"{place}: {error['ctx']['error']}; it is {_given(error)}"
    return f"{place}: is {_given(error)}; it must be {_wanted(error)}{_hint(error, root)}"


def _given(error: ErrorDetails) -> str:
    """What stands there; of a text about a model only that it is one, for it may be a key in the wrong place."""
    is_hidden = isinstance(error["input"], str) and error["loc"][0] == "models"
    return "a text" if is_hidden else shown(error["input"])


def _place(source: str, loc: Sequence[int | str]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    return f"{source}: {path}" if path else source


def _unknown_key(loc: Sequence[int | str], root: type[BaseModel]) -> str:
    key, section = str(loc[-1]), _section_at(loc[:-1], root)
    known = list(_fields(section))
    if homes := [name for name, below in _sections(root) if key in _fields(below)]:
        return f"unknown key {key!r}; it belongs under {' or '.join(map(repr, homes))}"
    if hint := nearest(key, known):
        return f"unknown key {key!r}{hint}"
    return f"unknown key {key!r}; known are {', '.join(sorted(known))}"


def _hint(error: ErrorDetails, root: type[BaseModel]) -> str:
    """Where any key is allowed, a misspelled one shows by its value."""
    if error["type"] == "literal_error":
        return nearest(str(error["input"]), _words(error["ctx"]["expected"]))
    if error["type"] in _NO_MAPPING and len(error["loc"]) > 1:
        return nearest(str(error["loc"][-1]), _fields(_section_at(error["loc"][:-1], root)))
    return ""


def _wanted(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _WANTED:
        return _WANTED[kind].format(**context)
    if kind in _NO_MAPPING:
        return "a mapping of keys"
    message = error["msg"]
    return message[:1].lower() + message[1:]


_NO_MAPPING = frozenset(("dict_type", "model_type", "model_attributes_type"))
_WANTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "path_type": "a path",
    "tuple_type": "a list",
    "list_type": "a list",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "below {lt:g}",
    "literal_error": "{expected}",
}


def _words(expected: str) -> list[str]:
    """`'a', 'b' or 'c'` as its words."""
    return [part for part in expected.split("'") if part.isidentifier() and part != "or"]


def _sections(root: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in root.model_fields.items():
        if (section := _section_in(field.annotation)) is not None:
            yield name, section


def _section_at(loc: Sequence[int | str], root: type[BaseModel]) -> type[BaseModel]:
    section = root
    for part in loc:
        if isinstance(part, str):
            annotation = _fields(section).get(part) or get_type_hints(section).get("__pydantic_extra__")
            section = _section_in(annotation) or section
    return section


def _fields(section: type[BaseModel]) -> dict[str, Any]:
    """The annotation of each key, under the name that the file uses."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation such as `tuple[Section, ...]` or `Section | None` holds."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, BaseModel) else None
    found = (_section_in(part) for part in get_args(annotation))
    return next((section for section in found if section is not None), None)
