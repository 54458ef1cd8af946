"""What a model answers when it is asked for blame: its shape, and how it is read.

The answer's ids are enums in the schema that the model sees, but an id that it made up is no reason to ask again: it
is dropped and counted. Everything else that does not fit is shown to the model as wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from promptiter.backprop.llm.model_stage import build_object_schema
from promptiter.stages.losses import Category, Severity
from traces.model import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

W = TypeVar("W", Severity, Category)

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameEntry:
    """What an answer says of one surface or predecessor. `of` and `step` are as the model wrote them."""

    of: str
    text: str
    severity: str
    category: str
    confidence: float
    step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameAnswer:
    gradients: tuple[BlameEntry, ...]
    packets: tuple[BlameEntry, ...]


@lru_cache(maxsize=256)
def build_answer_adapter(
    surfaces: tuple[str, ...], predecessors: tuple[str, ...] = (), *, steps: tuple[str, ...] = ()
) -> TypeAdapter[BlameAnswer]:
    """What an answer looks like when these may be blamed; with `steps` a gradient also says at which of them.

    The schema is strict; what is read is not: a word outside a closed set is cheaper to do without than to ask for
    again, and a list that may hold nothing may be missing.
    """
    from pydantic import AfterValidator, TypeAdapter, WithJsonSchema

    places = {"step": steps, "surface": surfaces} if steps else {"surface": surfaces}
    lists = {
        **({"gradients": _build_list_schema(places, confidence=_CONFIDENCE)} if surfaces else {}),
        **({"packets": _build_list_schema({"predecessor": predecessors})} if predecessors else {}),
    }
    schema = build_object_schema(diagnosis={"type": "string"}, **lists)
    parse = partial(_parse_answer, lists=tuple(lists))
    shape: Any = Annotated[_build_lenient_model(), AfterValidator(parse), WithJsonSchema(schema)]
    return TypeAdapter(shape)


def resolve_id(said: str, ids: Mapping[str, str]) -> str | None:
    """The id that an alias or id means; what is left blank means the only candidate."""
    candidates = set(ids.values())
    if not said and len(candidates) == 1:
        return candidates.pop()
    return ids.get(said) or ids.get(said.upper())


def grade(blame: BlameEntry, reports: Iterable[tuple[Severity, Category]]) -> tuple[Severity, Category]:
    """As the model says; where it says nothing that is known, as the worst report."""
    worst = min(reports, default=(None, None))
    return _match_word(blame.severity, SEVERITIES, worst[0] or "P1"), _match_word(
        blame.category, CATEGORIES, worst[1] or "other"
    )


_CONFIDENCE = {"type": "number", "minimum": 0, "maximum": 1}


def _build_list_schema(places: Mapping[str, tuple[str, ...]], **more: Json) -> dict[str, Json]:
    fields: dict[str, Json] = {
        **{name: {"type": "string", "enum": list(aliases)} for name, aliases in places.items()},
        "text": {"type": "string"},
        "severity": {"type": "string", "enum": list(SEVERITIES)},
        "category": {"type": "string", "enum": list(CATEGORIES)},
    }
    return {"type": "array", "items": build_object_schema(**fields, **more)}


@cache
def _build_lenient_model() -> Any:
    from pydantic import BeforeValidator, StringConstraints, create_model

    word: Any = Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value).strip())]
    text: Any = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    fields: dict[str, Any] = {"text": (text, ...), "severity": (word, ""), "category": (word, "")}
    gradient: Any = create_model("Gradient", step=(word, ""), surface=(word, ""), confidence=(float, 1.0), **fields)
    packet: Any = create_model("Packet", predecessor=(word, ""), **fields)
    return create_model("Answer", gradients=(list[gradient], []), packets=(list[packet], []))


def _parse_answer(said: Any, *, lists: tuple[str, ...]) -> BlameAnswer:
    if not said.model_fields_set:
        lacking = f"neither {lists[0]} nor {lists[1]}" if len(lists) > 1 else f"no {lists[0]}"
        raise ValueError(f"it has {lacking}; give an empty list where nothing is to blame")
    return BlameAnswer(
        gradients=tuple(_build_entry(each, each.surface) for each in said.gradients),
        packets=tuple(_build_entry(each, each.predecessor) for each in said.packets),
    )


def _build_entry(said: Any, of: str) -> BlameEntry:
    return BlameEntry(
        of=of,
        text=said.text,
        severity=said.severity,
        category=said.category,
        confidence=min(1.0, max(0.0, getattr(said, "confidence", 1.0))),
        step=getattr(said, "step", ""),
    )


def _match_word(said: str, words: tuple[W, ...], default: W) -> W:
    return next((word for word in words if word == said), default)
