"""Field types for files that name secrets: each `${VAR}` is replaced from the environment, and secrets stay hidden.

The validation context may hold the variables as `environ`; the default is the environment of the process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, InstanceOf, ValidationInfo

from promptiter.llm.redaction import MASK
from promptiter.llm.secret import Secret, holds_secret, map_texts_by_name
from traces.model import Json

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def hide_named_secrets(values: Mapping[str, Json], environ: Mapping[str, str]) -> dict[str, Json]:
    """A copy in which texts under the name of a secret, such as `api_key`, are Secrets."""

    def hide(text: str, names: tuple[str, ...]) -> str:
        return _hide(text, environ) if holds_secret(names) else text

    return dict(map_texts_by_name(dict(values), hide))


def _expand_text(text: str, info: ValidationInfo) -> str:
    return expand_variables(text, _get_environ(info))


def _read_secret(value: Json, info: ValidationInfo) -> Secret | None:
    if value is None or value == "" or isinstance(value, Secret):
        return value or None
    if not isinstance(value, str):
        raise ValueError("needs a string, best written as ${VAR}")  # noqa: TRY004 - pydantic catches these
    return _hide(value, _get_environ(info))


def _read_secret_values(value: Json, info: ValidationInfo) -> dict[str, Json]:
    if not isinstance(value, Mapping):
        raise ValueError("needs an object of names and values")  # noqa: TRY004 - the value is not shown: it may be a secret
    environ = _get_environ(info)

    def hide(text: str, names: tuple[str, ...]) -> str:
        is_secret = _VARIABLE.search(text) is not None or holds_secret(names)
        return _hide(text, environ) if is_secret and not isinstance(text, Secret) else text

    return dict(map_texts_by_name(dict(value), hide))


def _hide(text: str, environ: Mapping[str, str]) -> Secret:
    value = expand_variables(text, environ)
    parts = tuple(environ[name] for name in _VARIABLE.findall(text))
    return Secret(value, source=text if _VARIABLE.fullmatch(text) else MASK, parts=parts)


def expand_variables(text: str, environ: Mapping[str, str]) -> str:
    """The text with every `${VAR}` replaced. ValueError if one is not set."""

    def look_up(variable: re.Match[str]) -> str:
        if variable[1] not in environ:
            raise ValueError(f"the environment variable {variable[1]!r} is not set; export it")
        return environ[variable[1]]

    return _VARIABLE.sub(look_up, text)


def _get_environ(info: ValidationInfo) -> Mapping[str, str]:
    environ: Mapping[str, str] = (info.context or {}).get("environ", os.environ)
    return environ


def _check_variables(text: str, info: ValidationInfo) -> str:
    expand_variables(text, _get_environ(info))
    return text


CheckedText = Annotated[str, AfterValidator(_check_variables)]
"""A text whose `${VAR}` must be set. It stays as it is, so that no file gets the value."""
ExpandedText = Annotated[str, AfterValidator(_expand_text)]
SecretText = Annotated[InstanceOf[Secret] | None, BeforeValidator(_read_secret, json_schema_input_type=str | None)]
SecretValues = Annotated[dict[str, Any], BeforeValidator(_read_secret_values, json_schema_input_type=dict[str, Any])]
