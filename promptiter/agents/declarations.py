"""What a node declares besides texts: parameters that may be tuned, with their bounds, and tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from promptiter.agents.argument_checks import check_function, check_named, check_value
from promptiter.signatures import read_docstring
from promptiter.structure import Limits
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A number or choice that may be tuned, with its bounds."""

    value: Json
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Json, ...] = ()

    @property
    def limits(self) -> Limits:
        if self.choices:
            return Limits(kind="choice", choices=self.choices)
        is_whole = isinstance(self.value, int) and not isinstance(self.value, bool)
        return Limits(kind="integer" if is_whole else "number", minimum=self.minimum, maximum=self.maximum)


Declared: TypeAlias = Json | Parameter | Mapping[str, Json | Parameter]
"""The baseline of a surface type of a function: one value, or values by the names of its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call. A live tool reads changing data and is never answered from the cache."""

    name: str
    description: str
    function: Callable[..., Any]
    parameters: Mapping[str, Json] = field(default_factory=dict)
    is_live: bool = False

    def __post_init__(self) -> None:
        check_value(f"tool {self.name!r}: description", self.description, str, wanted="a text")
        check_function(f"tool {self.name!r}: function", self.function, wanted="a function")
        check_named(f"tool {self.name!r}: parameters", self.parameters, object, wanted="a JSON schema, as a dict")

    @property
    def docstring(self) -> str:
        """The docstring of its function; empty if it has none."""
        return read_docstring(self.function)
