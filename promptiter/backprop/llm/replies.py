"""The replies of models that are asked for blame: their schema, and how they are parsed.

Ids are enums in the schema that the model sees, but an unknown id does not trigger a repair: it is dropped and counted.
Every other mismatch is shown to the model for repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StringConstraints, TypeAdapter

from promptiter.backprop.llm.model_stage import build_object_schema
from promptiter.backprop.llm.reports import CitedReports
from promptiter.llm.structured import build_shape
from promptiter.stages.contracts import BackwardRequest, SurfaceGradient
from promptiter.stages.losses import CATEGORIES, SEVERITIES, CaseLoss, Category, Severity
from traces.model import Json


def _make_word(value: Json) -> str:
    return "" if value is None else str(value).strip()


_Word = Annotated[
    Annotated[str, StringConstraints(strip_whitespace=True)] | Annotated[Any, AfterValidator(_make_word)],
    Field(union_mode="left_to_right"),
]
"""A text, or anything else as text. Most are texts, for which no function is called."""

_Alias = Annotated[
    Annotated[str, StringConstraints(strip_whitespace=True, to_upper=True)]
    | Annotated[Any, AfterValidator(lambda value: _make_word(value).upper())],
    Field(union_mode="left_to_right"),
]

_Aliases = Annotated[
    tuple[_Alias, ...] | Annotated[Any, AfterValidator(lambda value: (_make_word(value).upper(),))],
    Field(union_mode="left_to_right"),
]
"""A list of aliases, or the only one without its list."""


class BlameEntry(BaseModel):
    """The blame of one surface or predecessor. `of`, `step` and the `cited` findings are as the model wrote them."""

    of: _Word = ""
    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    severity: _Word = ""
    category: _Word = ""
    confidence: Annotated[
        float,
        BeforeValidator(lambda value: 1.0 if value is None else value),
        AfterValidator(lambda value: min(1.0, max(0.0, value))),
    ] = 1.0
    step: _Word = ""
    cited: Annotated[_Aliases, Field(alias="findings")] = ()


class _GradientEntry(BlameEntry):
    of: Annotated[_Word, Field(alias="surface")] = ""


class _PacketEntry(BlameEntry):
    of: Annotated[_Word, Field(alias="predecessor")] = ""


def _make_list(value: Json) -> Json:
    """A list that is missing is empty; an entry without its list is the only one."""
    return [] if value is None else [value] if isinstance(value, dict) else value


class BlameAnswer(BaseModel):
    """The entries of one answer: gradients on surfaces, packets to predecessors. Its diagnosis explains them."""

    diagnosis: _Word = ""
    gradients: Annotated[list[_GradientEntry], BeforeValidator(_make_list)] = []
    packets: Annotated[list[_PacketEntry], BeforeValidator(_make_list)] = []


@lru_cache(maxsize=256)
def build_answer_adapter(
    surfaces: tuple[str, ...],
    predecessors: tuple[str, ...] = (),
    *,
    steps: tuple[str, ...] = (),
    reports: tuple[str, ...] = (),
) -> TypeAdapter[BlameAnswer]:
    """Build the adapter of an answer that may blame these; with `steps` a gradient also names its step.

    Every entry cites `reports`, the findings that it explains.

    The schema is strict, but parsing is lenient: ignoring a word outside a closed set is cheaper than asking again, and
    a list that may be empty may be missing.
    """
    places = {"step": steps, "surface": surfaces} if steps else {"surface": surfaces}
    lists = {
        **({"gradients": _build_list_schema(places, reports, confidence=_CONFIDENCE)} if surfaces else {}),
        **({"packets": _build_list_schema({"predecessor": predecessors}, reports)} if predecessors else {}),
    }
    schema = build_object_schema(diagnosis={"type": "string"}, **lists)
    return build_shape(BlameAnswer, partial(_check_answer, lists=tuple(lists)), schema=schema)


def resolve_id(name: str, aliases: Mapping[str, str], *, others: Iterable[str] = ()) -> str | None:
    """Resolve an alias, or one of the other ids by itself; a blank means the only candidate."""
    if found := aliases.get(name):
        return found
    ids = {each: each for each in others} | dict(aliases)
    if not name and len(candidates := set(ids.values())) == 1:
        return candidates.pop()
    return ids.get(name) or ids.get(name.upper())


def grade(blame: BlameEntry, cited: CitedReports) -> tuple[Severity, Category]:
    """Severity and category of an entry; an unknown or missing one is that of the worst report."""
    severity, category = _SEVERITY_OF.get(blame.severity.upper()), _CATEGORY_OF.get(blame.category.lower())
    worst = cited.worst
    return (
        severity or ("P1" if worst is None else worst.severity),
        category or ("other" if worst is None else worst.category),
    )


def build_gradient(
    blame: BlameEntry, place: tuple[str, str], case: BackwardRequest | CaseLoss, *, cited: CitedReports
) -> SurfaceGradient:
    """Build the gradient of an entry at a place, that is, on a surface at a step. It explains the cited reports."""
    (surface_id, step_id), (severity, category) = place, grade(blame, cited)
    return SurfaceGradient(
        surface_id=surface_id,
        case_id=case.case_id,
        step_id=step_id,
        text=blame.text,
        severity=severity,
        category=category,
        repeat=case.repeat,
        turn=case.turn,
        confidence=blame.confidence,
        findings=cited.findings,
        reasons=cited.texts,
    )


_SEVERITY_OF: Mapping[str, Severity] = {severity.upper(): severity for severity in SEVERITIES}
_CATEGORY_OF: Mapping[str, Category] = {category.lower(): category for category in CATEGORIES}

_CONFIDENCE = {"type": "number", "minimum": 0, "maximum": 1}


MOST_LISTED = 100
"""Maximum number of ids that a schema lists, because providers limit the size of schemas."""


def _build_list_schema(
    places: Mapping[str, tuple[str, ...]], reports: tuple[str, ...], **more: Json
) -> dict[str, Json]:
    fields: dict[str, Json] = {
        **{name: _build_id_schema(aliases) for name, aliases in places.items()},
        **({"findings": {"type": "array", "items": _build_id_schema(reports)}} if reports else {}),
        "text": {"type": "string"},
        "severity": {"type": "string", "enum": list(SEVERITIES)},
        "category": {"type": "string", "enum": list(CATEGORIES)},
    }
    return {"type": "array", "items": build_object_schema(**fields, **more)}


def _build_id_schema(aliases: tuple[str, ...]) -> dict[str, Json]:
    return {"type": "string"} | ({"enum": list(aliases)} if len(aliases) <= MOST_LISTED else {})


def _check_answer(answer: BlameAnswer, *, lists: tuple[str, ...]) -> BlameAnswer:
    if not answer.model_fields_set - {"diagnosis"}:
        lacking = f"neither {lists[0]} nor {lists[1]}" if len(lists) > 1 else f"no {lists[0]}"
        raise ValueError(f"it has {lacking}; give an empty list where nothing is to blame")
    return answer
