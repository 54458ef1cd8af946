"""The types of values in promptiter.yaml, and `Section`, the base of its mappings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationInfo

from promptiter.llm.secret_fields import SecretValues
from traces.model import Json


class Section(BaseModel):
    """A mapping of the file. It is frozen and rejects unknown keys.

    The docstring of a field is the description of its key, in the JSON Schema and in docs/reference/configuration.md.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class PartEntry(Section):
    """A part of the run that is built by name: a mapping, or only its name."""

    name: str
    """The name of the part, or `module:attr`: a class, a function that builds the part, or the part itself."""
    options: SecretValues = Field(default_factory=dict)
    """Keyword arguments for the class or function. `${VAR}` is read from the environment."""


def resolve_path(path: Path, info: ValidationInfo) -> Path:
    """A path relative to the folder of the file."""
    folder: Path | None = (info.context or {}).get("folder")
    return path if folder is None else folder / path


def _to_list(value: Json) -> Json:
    return [value] if isinstance(value, str | Path) else value


def _to_parts(value: Json) -> Json:
    return [value] if isinstance(value, str | dict) else value


def _parse_part(value: Json) -> Json:
    if value == "":
        raise ValueError("must not be empty")
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict | PartEntry):
        return value
    raise ValueError("must be a name, module:attr, or a mapping with name and options")


def _parse_metrics(value: Json, info: ValidationInfo) -> Json:
    if isinstance(value, str | Path):
        return resolve_path(Path(value), info)
    if isinstance(value, dict) and not value.keys().isdisjoint(("metric_name", "metricName")):
        raise ValueError("is one metric, but must be a list of them; write `- metric_name: ...`")
    if isinstance(value, list | dict):
        return value
    raise ValueError("must be a metrics file, or a list of metrics")


def _parse_cache(value: Json, info: ValidationInfo) -> Json:
    if not isinstance(value, str):
        raise ValueError("must be 'memory', or a path in .jsonl, .sqlite or .db")  # noqa: TRY004 - pydantic catches these
    return value if value == "memory" else str(resolve_path(Path(value), info))


def _parse_review(value: Json) -> Json:
    if isinstance(value, bool):
        return "ask" if value else None
    if value is None or value in ("ask", "file"):
        return value
    raise ValueError("must be ask, file, true (the same as ask) or false")


Count = Annotated[int, Field(strict=True, ge=1)]
Amount = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Above0 = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Chance = Annotated[float, Field(strict=True, gt=0, lt=1)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
File = Annotated[Path, AfterValidator(resolve_path)]
Files = Annotated[tuple[File, ...], BeforeValidator(_to_list, json_schema_input_type=Path | list[Path])]
Names = Annotated[tuple[str, ...], BeforeValidator(_to_list, json_schema_input_type=str | list[str])]
Part = Annotated[PartEntry, BeforeValidator(_parse_part, json_schema_input_type=str | PartEntry)]
Parts = Annotated[
    tuple[Part, ...],
    BeforeValidator(_to_parts, json_schema_input_type=str | PartEntry | list[str | PartEntry]),
]
MetricsEntry = Annotated[
    Path | list[Any] | dict[str, Any] | None,
    PlainValidator(_parse_metrics, json_schema_input_type=Path | list[dict[str, Any]] | dict[str, Any]),
    Field(repr=False),
]
CacheEntry = Annotated[str, PlainValidator(_parse_cache, json_schema_input_type=str)]
ReviewEntry = Annotated[
    Literal["ask", "file"] | None,
    PlainValidator(_parse_review, json_schema_input_type=Literal["ask", "file"] | bool),
]
