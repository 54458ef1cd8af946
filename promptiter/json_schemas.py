"""Checks values against JSON schemas, in this process. A schema with patterns is checked by `patterns` instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traces.model import Json

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

TOO_DEEP = "the value is nested too deeply to be checked against the JSON schema"


@dataclass(frozen=True, slots=True)
class SchemaViolation:
    """Where a value does not fit a schema. `keyword` is the part of the schema that failed, and `wanted` its value."""

    keyword: str
    wanted: Json
    value: Json
    path: list[str | int]
    message: str


class SchemaCheckError(ValueError):
    """A value cannot be checked against a schema."""


def check_schema(schema: Mapping[str, Json]) -> None:
    """Raise jsonschema's SchemaError if this is not a JSON schema."""
    from jsonschema.validators import Draft202012Validator, validator_for

    validator_for(schema, default=Draft202012Validator).check_schema(dict(schema))


def list_violations(schema: Mapping[str, Json], value: Json) -> list[SchemaViolation]:
    """Every violation of a schema. SchemaCheckError if the value cannot be checked."""
    with _explained():
        return [_describe(each) for each in _build_validator(schema).iter_errors(value)]


def find_violation(schema: Mapping[str, Json], value: Json) -> SchemaViolation | None:
    """The violation that explains best why a value does not fit, if it does not."""
    from jsonschema.exceptions import best_match

    with _explained():
        error = best_match(_build_validator(schema).iter_errors(value))
    return None if error is None else _describe(error)


@contextmanager
def _explained() -> Iterator[None]:
    from referencing.exceptions import Unresolvable

    try:
        yield
    except Unresolvable as error:
        raise SchemaCheckError(
            f"the JSON schema refers to {error}; put it under $defs, because references are not fetched"
        ) from error
    except re.error as error:
        raise SchemaCheckError(f"the JSON schema has an invalid pattern: {error}") from error
    except RecursionError as error:
        raise SchemaCheckError(TOO_DEEP) from error


def _build_validator(schema: Mapping[str, Json]) -> Validator:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    # Without an empty registry, jsonschema would fetch references from the network.
    return validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())


def _describe(error: ValidationError) -> SchemaViolation:
    return SchemaViolation(
        keyword=str(error.validator),
        wanted=error.validator_value,
        value=error.instance,
        path=list(error.absolute_path),
        message=f"{error.json_path}: {error.message}",
    )
