"""What a node declares besides texts: parameters that may be tuned, with their bounds, and tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from promptiter.agents.argument_checks import check_function, check_named, check_value
from promptiter.errors import SetupError
from promptiter.signatures import read_docstring
from promptiter.structure import Limits
from traces.model import Json

ENABLED = "enabled"
"""The setting that switches an optional tool on and off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A number, a choice, or true or false, that may be tuned, with its bounds.

    On a `log` scale a search tries equal factors instead of equal steps: from 0.001 to 0.01 is as far as to 0.1.
    """

    value: Json
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Json, ...] = ()
    scale: Literal["linear", "log"] = "linear"

    def __post_init__(self) -> None:
        if self.scale not in ("linear", "log"):
            raise SetupError(f"the scale of a parameter is {self.scale!r}; give 'linear' or 'log'")
        is_number = isinstance(self.value, int | float) and not isinstance(self.value, bool) and not self.choices
        if self.scale == "log" and not (is_number and self.minimum is not None and self.minimum > 0):
            raise SetupError("a parameter with a log scale needs a number as value, and a minimum above 0")

    @property
    def limits(self) -> Limits:
        given = Limits(minimum=self.minimum, maximum=self.maximum, choices=self.choices, scale=self.scale)
        return given.complete(self.value)


Declared: TypeAlias = Json | Parameter | Mapping[str, Json | Parameter]
"""The baseline of a surface type of a function: one value, or values by the names of its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call. A live tool reads changing data and is never answered from the cache.

    `settings` are arguments that the model neither sees nor gives, such as the number of documents to retrieve. Each is
    a surface: `agent#parameter.archive.top_k`. A tool that `is_optional` has another one,
    `agent#parameter.archive.enabled`: if it is false, the model is not offered the tool.
    """

    name: str
    description: str
    function: Callable[..., Any]
    parameters: Mapping[str, Json] = field(default_factory=dict)
    is_live: bool = False
    settings: Mapping[str, Parameter] = field(default_factory=dict)
    is_optional: bool = False

    def __post_init__(self) -> None:
        check_value(f"tool {self.name!r}: description", self.description, str, wanted="a text")
        check_function(f"tool {self.name!r}: function", self.function, wanted="a function")
        check_named(f"tool {self.name!r}: parameters", self.parameters, object, wanted="a JSON schema, as a dict")
        wanted = "parameters by name, such as {'top_k': Parameter(value=5, minimum=1, maximum=20)}"
        check_named(f"tool {self.name!r}: settings", self.settings, Parameter, wanted=wanted)
        seen = self.parameters.get("properties")
        for name in self.settings:
            if isinstance(seen, Mapping) and name in seen:
                raise SetupError(f"tool {self.name!r}: {name!r} is a setting and an argument of the model; remove one")
            if name == ENABLED and self.is_optional:
                raise SetupError(f"tool {self.name!r} is optional, so a setting cannot be named {ENABLED!r}; rename it")

    @property
    def declared(self) -> dict[str, Parameter]:
        """Its settings and its switch, by the parts of their surfaces."""
        switch = {ENABLED: Parameter(value=True)} if self.is_optional else {}
        return {self.name_part(name): each for name, each in {**self.settings, **switch}.items()}

    def name_part(self, name: str) -> str:
        """The part of the surface of a setting: `archive.top_k`."""
        return f"{self.name}.{name}"

    @property
    def docstring(self) -> str:
        """The docstring of its function; empty if it has none."""
        return read_docstring(self.function)
