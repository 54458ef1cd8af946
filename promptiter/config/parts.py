"""Builds the parts that promptiter.yaml names: searches, stages, observers, executors, scorers.

A part is a class, a function that builds it, or the part itself. Everything is checked here, before anything is spent:
the options against the signature of the class or function, and the part against what its kind must be able to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, create_model

from promptiter.agents.base import is_agent
from promptiter.config.fields import PartEntry
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.scorer import Scorer
from promptiter.llm.secret import reveal
from promptiter.references import load_reference
from promptiter.stages.roles import Role, check_part
from promptiter.user_files import Location, describe_problems
from promptiter.wording import join_names, shorten


def build_part(
    entry: PartEntry,
    role: Role,
    *,
    place: str,
    supplied: Mapping[str, Any] | None = None,
    supplied_by: Mapping[str, str] | None = None,
) -> Any:
    """Build the part that an entry names. `supplied` are arguments that other keys of the file give.

    `supplied_by` are the keys of all arguments that can be supplied, by the name of the argument.

    Raises a SetupError, or a RequestError with all problems of the options, that starts with the place.
    """
    found = _load(entry, role.load, place=place)
    if not inspect.isclass(found) and hasattr(found, role.method):
        if entry.options:
            raise SetupError(f"{place}.options: {entry.name!r} is already built, so it takes no options; remove them")
        return _check_part(found, role, f"{place}: {entry.name!r}")
    if is_agent(found):
        raise SetupError(f"{place}: {entry.name!r} is an agent, not {role.describe_need()}")
    if not callable(found) or (inspect.isclass(found) and not hasattr(found, role.method)):
        raise SetupError(f"{place}: {entry.name!r} is {shorten(found)}, not {role.describe_need(found)}")
    elsewhere = supplied_by or {}
    given = {name: value for name, value in (supplied or {}).items() if name in list_parameters(found)}
    if wrong := [name for name in entry.options if name in elsewhere]:
        raise RequestError(
            f"{place}.options: unknown key {name!r}; it is given as {elsewhere[name]!r}" for name in wrong
        )
    options = read_options(found, reveal(entry.options), place=f"{place}.options", without=elsewhere)
    if missing := _find_missing(found, {*given, *options}):
        advice = (
            "" if inspect.isclass(found) else f", or name a class or function that builds {role.describe_need(found)}"
        )
        keys = [elsewhere.get(name, f"{place}.options.{name}") for name in missing]
        raise SetupError(
            f"{place}: {entry.name!r} needs {join_names(missing, limit=5)}; give {join_names(keys, limit=5)}{advice}"
        )
    try:
        part = found(**given, **options)
    except SetupError as error:
        raise SetupError(f"{place}: {error}") from error
    except Exception as error:
        raise SetupError(f"{place}: {entry.name!r} cannot be built: {type(error).__name__}: {error}") from error
    if inspect.iscoroutine(part):
        part.close()
        raise SetupError(f"{place}: {entry.name!r} is async, so it cannot build {role.describe_need()}; make it a def")
    return _check_part(part, role, f"{place}: {entry.name!r}")


def build_scorer(entry: PartEntry, *, place: str = "scorer") -> Scorer:
    """The scorer that an entry names: a Scorer, or a function of the profile, the context if it wants, and options."""
    found = _load(entry, load_reference, place=place)
    if isinstance(found, Scorer) and not entry.options:
        return found
    if isinstance(found, Scorer):
        raise SetupError(f"{place}.options: {entry.name!r} is a Scorer, which takes no options; name its function")
    if not callable(found) or inspect.isclass(found):
        raise SetupError(
            f"{place}: {entry.name!r} is {shorten(found)}, not a scorer; name a function of a profile that returns "
            "its scores, or a Scorer"
        )
    first = list(list_parameters(found))[:1]
    options = read_options(found, reveal(entry.options), place=f"{place}.options", without=first)
    missing = [name for name in _find_missing(found, options) if name not in (*first, "context")]
    if not first or missing:
        needs = f"needs {join_names(missing, limit=5)}" if missing else "takes no arguments"
        raise SetupError(
            f"{place}: {entry.name!r} {needs}; a scorer takes (profile) or (profile, context), and its options"
        )
    return Scorer(partial(found, **options) if options else found)


def list_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a class or function that can be given by name; none if it does not say."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in parameters.items() if each.kind in kinds}


def read_options(
    function: Callable[..., Any], options: Mapping[str, Any], *, place: str, without: Collection[str]
) -> dict[str, Any]:
    """Check options against the signature of a function. A RequestError says what is wrong with each.

    The parameters in `without` are not options.
    """
    if any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values()):
        return dict(options)
    try:
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except Exception:  # noqa: BLE001 - annotations may name what exists for type checkers only
        hints = {}
    parameters = {name: each for name, each in list_parameters(function).items() if name not in without}
    fields: dict[str, Any] = {
        f"option_{number}": (
            _refine(hint) if _is_plain(hint := hints.get(name, Any)) else Any,
            Field(default=None, validation_alias=name),
        )
        for number, name in enumerate(parameters)
    }
    model = create_model("Options", __config__=ConfigDict(extra="forbid"), **fields)
    try:
        read = model.model_validate(dict(options))
    except ValidationError as error:
        problems = describe_problems(error, model, Location("", path=place))
        raise RequestError(problem.removeprefix(": ") for problem in problems) from error
    numbers = {name: number for number, name in enumerate(parameters)}
    return {name: getattr(read, f"option_{numbers[name]}") for name in options}


def _load(entry: PartEntry, load: Callable[[str], Any], *, place: str) -> Any:
    try:
        return load(entry.name)
    except SetupError as error:
        raise SetupError(f"{place}: {error}") from error


def _check_part(part: Any, role: Role, place: str) -> Any:
    try:
        check_part(part, role)
    except SetupError as error:
        raise SetupError(f"{place}: {error}") from error
    return part


def _find_missing(function: Callable[..., Any], given: Iterable[str]) -> list[str]:
    parameters = list_parameters(function).items()
    return [name for name, each in parameters if each.default is each.empty and name not in set(given)]


def _refine(hint: Any) -> Any:
    """The type as pydantic checks it here: a boolean is not a number, and a union has one message."""
    is_union = get_origin(hint) in (Union, UnionType)
    kinds = [each for each in (get_args(hint) if is_union else (hint,)) if each is not NoneType]
    if len(kinds) == 1 and kinds[0] not in (int, float):
        return hint
    wanted = f"must be {' or '.join(map(_describe_type, kinds))}"

    def read(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, bool) and bool not in kinds:
            raise ValueError(wanted)
        try:
            return check(value)
        except ValidationError:
            raise ValueError(wanted) from None

    return Annotated[hint, WrapValidator(read)]


def _describe_type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return _NOUNS.get(get_origin(hint) or hint, "another value")


_NOUNS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
}


def _is_plain(hint: Any) -> bool:
    """Whether a file can hold a value of this type, so that pydantic can check it."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return all(map(_is_plain, get_args(hint)))
    if origin is Literal:
        return True
    if origin in (list, tuple, dict):
        return all(each is Ellipsis or _is_plain(each) for each in get_args(hint))
    return hint in (int, float, str, bool, list, tuple, dict, NoneType, Any)
