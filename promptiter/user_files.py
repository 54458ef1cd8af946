"""Files that users write, read with pydantic: eval sets, metric files and promptiter.yaml.

Every mistake becomes a sentence that names the file, the key and what is allowed there:

    promptiter.yaml: stop: unknown key 'patiance' (did you mean 'patience'?)
    metrics.json: metrics[0].threshold: must be a number, not 'high'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AliasChoices, AliasGenerator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from promptiter.errors import SetupError, nearest
from promptiter.validation_errors import NO_MEMBER, merge_members
from promptiter.wording import plural, shorten
from traces.model import Json

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Keys = Sequence[int | str]
_Homes = Sequence[tuple[str, type[BaseModel]]]
Model = TypeVar("Model", bound=BaseModel)

SHOWN_PROBLEMS = 5
KEY_CUTOFF = 0.7
"""How similar a key must be to one with another first letter to be taken for it: 'agent' is not 'targets'."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a value is: `train.jsonl, line 3: turns[0]`."""

    file: str
    line: int | None = None
    path: str = ""

    def __str__(self) -> str:
        file = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{file}: {self.path}" if self.path else file

    @property
    def in_file(self) -> str:
        """The location without the name of the file."""
        parts = ([] if self.line is None else [f"line {self.line}"]) + ([self.path] if self.path else [])
        return ", ".join(parts) or "the whole file"

    @property
    def object_noun(self) -> str:
        """What the format of the file calls an object."""
        return "a mapping" if self.file.endswith((".yaml", ".yml")) else "an object"

    def below(self, *keys: int | str) -> Location:
        """The location of what is under these keys."""
        steps = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
        return replace(self, path=(self.path + steps).removeprefix("."))


def spell(*names: str) -> AliasChoices:
    """The snake_case and camelCase spellings of a key. The first name is the one that messages suggest."""
    return AliasChoices(*dict.fromkeys(spelling for name in names for spelling in (name, to_camel(name))))


class FileObject(BaseModel):
    """One object of a file. Keys may be snake_case or camelCase, unknown keys are errors, null counts as left out."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        hide_input_in_errors=True,  # a traceback must not show a secret
        defer_build=True,  # a process reads few kinds of objects
        alias_generator=AliasGenerator(validation_alias=spell),
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict) or None not in value.values():
            return value
        known = _list_annotations(cls)
        return {key: each for key, each in value.items() if each is not None or key not in known}


def read_text(file: Path, *, missing: str = "") -> str:
    """The text of a file, as UTF-8. SetupError if it cannot be read; `missing` is added if there is no such file."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        hint = missing if isinstance(error, FileNotFoundError) else ""
        raise SetupError(f"{file}: cannot be read: {error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        raise SetupError(f"{file}: invalid UTF-8 at byte {error.start}; save it as UTF-8") from error


def read_object(
    model: type[Model],
    value: Json,
    location: Location,
    *,
    error: type[SetupError],
    context: Mapping[str, Any] | None = None,
) -> Model:
    """Check a value against a model. Raises `error` with the first few problems, one on each line."""
    try:
        return model.model_validate(value, context=context)
    except ValidationError as invalid:
        problems = describe_problems(invalid, model, location)
        more = [f"and {len(problems) - SHOWN_PROBLEMS} more"] if len(problems) > SHOWN_PROBLEMS else []
        raise error("\n".join(problems[:SHOWN_PROBLEMS] + more)) from invalid


def describe_problems(
    error: ValidationError,
    model: type[BaseModel],
    location: Location,
    *,
    is_secret: Callable[[Keys], bool] = lambda _: False,
    sections: Mapping[tuple[int | str, ...], type[BaseModel]] | None = None,
    limit: int | None = None,
) -> list[str]:
    """Each problem as a sentence, up to a limit. Strings under keys that may hold a secret are not quoted.

    `sections` are the models of objects, by their keys, that the annotations of `model` do not name.
    """
    errors, known = merge_members(error.errors(include_url=False), model)[:limit], sections or {}
    homes = [*_list_sections(model), *((".".join(map(str, keys)), section) for keys, section in known.items())]
    return [
        _describe(
            each,
            homes,
            location,
            section=known.get(each["loc"][:-1]) or _find_section(each["loc"][:-1], model),
            hide_text=is_secret(each["loc"]),
        )
        for each in errors
        if not _is_misspelled(each, errors)
    ]


def _is_misspelled(error: ErrorDetails, errors: Sequence[ErrorDetails]) -> bool:
    """Whether a key is missing because it is misspelled, which is reported as an unknown key."""
    return error["type"] == "missing" and any(
        other["type"] == "extra_forbidden"
        and other["loc"][:-1] == error["loc"][:-1]
        and nearest(str(other["loc"][-1]), [str(error["loc"][-1])])
        for other in errors
    )


def _describe(
    error: ErrorDetails, homes: _Homes, location: Location, *, section: type[BaseModel], hide_text: bool
) -> str:
    kind, loc, given = error["type"], error["loc"], error["input"]
    given = location.object_noun if isinstance(given, Mapping) else _describe_value(given, hide_text=hide_text)
    if kind == "extra_forbidden":
        return f"{location.below(*loc[:-1])}: {_describe_unknown_key(str(loc[-1]), section, homes)}"
    place = location.below(*loc)
    if kind == "missing":
        return f"{place}: is missing"
    if kind == "string_too_short" or (kind == "too_short" and error["ctx"]["min_length"] == 1):
        return f"{place}: must not be empty"
    if kind in ("too_short", "too_long"):
        return f"{place}: must have {_describe_wanted(error, location)}, not {error['ctx']['actual_length']}"
    if kind == "value_error":
        message = str(error["ctx"]["error"])
        return f"{place}: {message}, not {given}" if message.startswith("must be ") else f"{place}: {message}"
    return f"{place}: must be {_describe_wanted(error, location)}, not {given}{_suggest(error, section)}"


def _describe_value(value: Json, *, hide_text: bool) -> str:
    """A value in a few words. Lists may be too deep for `repr`."""
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, str) and hide_text:
        return "a string"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shorten(value, limit=80)


def _describe_unknown_key(key: str, section: type[BaseModel], homes: _Homes) -> str:
    shown = shorten(key)
    names = {spelling: choices[0] for choices in list_spellings(section).values() for spelling in choices}
    if key in names:
        return f"{shown} is another spelling of {names[key]!r}, which is given too; keep one of them"
    if found := [name for name, below in homes if key in _list_annotations(below)]:
        return f"unknown key {shown}; it belongs under {' or '.join(map(repr, found))}"
    alike = [name for name in names if name[:1] == key[:1]]
    if hint := nearest(key, names, cutoff=KEY_CUTOFF) or nearest(key, alike):
        return f"unknown key {shown}{hint}"
    known = ", ".join(sorted(set(names.values())))
    return f"unknown key {shown}; known are {known}" if known else f"unknown key {shown}; leave it out"


def _suggest(error: ErrorDetails, section: type[BaseModel]) -> str:
    """The nearest allowed word; where any key is allowed, a misspelled key shows by its value."""
    if words := list_allowed_words(error):
        return nearest(str(error["input"]), words)
    if error["type"] in _NOT_AN_OBJECT and len(error["loc"]) > 1 and error["loc"][-1] not in _list_annotations(section):
        return nearest(str(error["loc"][-1]), _list_annotations(section))
    return ""


def describe_wanted(error: Mapping[str, Any]) -> str:
    """What a value should be, such as `a whole number`."""
    return _describe_wanted(error, Location(""))


def list_allowed_words(error: Mapping[str, Any]) -> list[str]:
    """The words that were allowed instead of one that is not."""
    return _split_quoted_words(error["ctx"]["expected"]) if error["type"] == "literal_error" else []


def _describe_wanted(error: ErrorDetails | Mapping[str, Any], location: Location) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == NO_MEMBER:
        return " or ".join(dict.fromkeys(_describe_wanted(each, location) for each in context["errors"]))
    if kind in _LENGTHS:
        return _LENGTHS[kind](context)
    if kind in _WANTED:
        return _WANTED[kind].format(**context)
    if kind in _NOT_AN_OBJECT:
        return location.object_noun
    message = error["msg"].removeprefix("Input should be ")
    return message[:1].lower() + message[1:]


_LENGTHS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "too_short": lambda context: f"at least {plural(context['min_length'], 'item')}",
    "too_long": lambda context: f"at most {plural(context['max_length'], 'item')}",
    "string_too_long": lambda context: f"at most {plural(context['max_length'], 'character')} long",
}
_NOT_AN_OBJECT = frozenset(("dict_type", "model_type", "model_attributes_type"))
_WANTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "path_type": "a path",
    "tuple_type": "a list",
    "list_type": "a list",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "below {lt:g}",
    "literal_error": "{expected}",
}


def _split_quoted_words(expected: str) -> list[str]:
    """The words of `'a', 'b' or 'c'`."""
    return [part for part in expected.split("'") if part.isidentifier() and part != "or"]


def _list_sections(root: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for choices, field in zip(list_spellings(root).values(), root.model_fields.values(), strict=True):
        if (section := _find_model_in(field.annotation)) is not None:
            yield choices[0], section


def _find_section(loc: Keys, root: type[BaseModel]) -> type[BaseModel]:
    """The model of the object at these keys."""
    section = root
    for key in loc:
        if isinstance(key, str):
            annotation = _list_annotations(section).get(key) or get_type_hints(section).get("__pydantic_extra__")
            section = _find_model_in(annotation) or section
    return section


def _find_model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `list[Section]` or `Section | None`."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, BaseModel) else None
    found = (_find_model_in(part) for part in get_args(annotation))
    return next((section for section in found if section is not None), None)


@cache
def _list_annotations(section: type[BaseModel]) -> dict[str, Any]:
    """The annotation of each key, in every spelling."""
    fields = section.model_fields
    return {key: fields[name].annotation for name, choices in list_spellings(section).items() for key in choices}


@cache
def list_spellings(section: type[BaseModel]) -> dict[str, list[str]]:
    """How a file may spell the key of each field."""
    return {
        name: [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [str(alias or name)]
        for name, alias in ((name, field.validation_alias) for name, field in section.model_fields.items())
    }
