"""Errors of pydantic, one for each mistake: of the members of a union, only the one that was meant counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Loc = tuple[int | str, ...]
NO_MEMBER = "no_member_of_union"
"""The type of an error whose value fits no member. `ctx["errors"]` has what each member says."""


def merge_members(errors: Iterable[ErrorDetails], model: type[BaseModel]) -> list[ErrorDetails]:
    """The errors without the names that pydantic gives to members of unions, and without members that were not meant.

    A member was not meant if the value is of another type: a string where the member is an object.
    """
    merged: dict[object, list[tuple[str, ErrorDetails]]] = {}
    for number, error in enumerate(errors):
        loc, member, union = _follow(error["loc"], model)
        cleaned: ErrorDetails = {**error, "loc": loc}
        merged.setdefault(number if union is None else union, []).append((member, cleaned))
    return [error for union, found in merged.items() for error in _choose(union, found)]


def _choose(union: object, found: list[tuple[str, ErrorDetails]]) -> list[ErrorDetails]:
    if not isinstance(union, tuple):
        return [error for _, error in found]
    wrong = {member: error for member, error in found if error["loc"] == union and error["type"].endswith("_type")}
    meant = next((member for member, _ in found if member not in wrong), None)
    if meant is not None:
        return [error for member, error in found if member == meant]
    first = next(iter(wrong.values()))
    if len(wrong) == 1:
        return [first]
    return [{**first, "type": NO_MEMBER, "ctx": {"errors": list(wrong.values())}}]


def _follow(loc: Loc, model: type[BaseModel]) -> tuple[Loc, str, Loc | None]:
    """A location without names of members, the member of the first union on the way, and where that union is."""
    annotation: Any = model
    kept: list[int | str] = []
    member, union = "", None
    for key in loc:
        if len(members := _list_members(annotation)) > 1 and isinstance(key, str):
            if union is None:
                member, union = key, tuple(kept)
            annotation = next((each for each in members if getattr(each, "__name__", "") == key), None)
            continue
        annotation = _descend(members[0] if members else annotation, key)
        kept.append(key)
    return tuple(kept), member, union


def _list_members(annotation: Any) -> list[Any]:
    """The members of a union, other than None; otherwise the type itself."""
    if get_origin(annotation) is Annotated:
        return _list_members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [part for each in get_args(annotation) if each is not type(None) for part in _list_members(each)]
    return [] if annotation is None else [annotation]


def _descend(annotation: Any, key: int | str) -> Any:
    """The annotation of what is under a key; None if it is not known."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return next(
            (
                field.annotation
                for name, field in annotation.model_fields.items()
                if key in (name, field.alias, *_spell(field.validation_alias))
            ),
            None,
        )
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if not arguments or not isinstance(origin, type):
        return None
    if issubclass(origin, Mapping):
        return arguments[1]
    return arguments[0]


def _spell(alias: object) -> list[object]:
    return list(alias.choices) if isinstance(alias, AliasChoices) else [alias]
