"""LLMBackwarder: a model reads one step of a failed run and says which surface, or which predecessor, is to blame.

The answer's ids are enums in the schema that the model sees, but an id that it made up is no reason to ask again: it
is dropped and counted. Everything else that does not fit is shown to the model as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args

from promptiter.backprop.asking import ModelStage, object_schema
from promptiter.backprop.loss import Category, Severity
from promptiter.backprop.prompts import predecessor_aliases, render_backward, surface_aliases
from promptiter.backprop.showing import incoming_findings
from promptiter.backprop.stages import BackwardRequest, BackwardResult, GradientPacket, SurfaceGradient
from promptiter.llm.messages import Role
from traces.model import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

W = TypeVar("W", Severity, Category)

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What an answer says of one surface or predecessor. `of` is as the model wrote it."""

    of: str
    text: str
    severity: str
    category: str
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    gradients: tuple[Blame, ...]
    packets: tuple[Blame, ...]


class LLMBackwarder(ModelStage[BackwardRequest]):
    """Asks a model once for each step. An own `render` may name surfaces and steps by their ids as well."""

    role: ClassVar[Role] = "backwarder"

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        """Gradients and packets; a ModelError if the model gave no usable answer, also after repair."""
        if not request.blamable and not request.predecessors:
            return BackwardResult(step_id=request.step.id)
        surfaces, predecessors = surface_aliases(request), predecessor_aliases(request)
        limit = self.max_prompt_tokens
        messages = self.render(request) if self.render else render_backward(request, limit=limit)
        shape = answer_shape(tuple(surfaces), tuple(predecessors))
        answer = await self.ask(shape, messages, request, node_id=request.step.node_id)
        surface_ids = {name: name for name in request.blamable} | surfaces
        step_ids = {step.id: step.id for step in request.predecessors}
        step_ids |= {alias: step.id for alias, step in predecessors.items()}
        gradients = [(_resolved(blame.of, surface_ids), blame) for blame in answer.gradients]
        packets = [(_resolved(blame.of, step_ids), blame) for blame in answer.packets]
        return BackwardResult(
            step_id=request.step.id,
            gradients=tuple(_gradient(name, blame, request) for name, blame in gradients if name),
            packets=_merged([_packet(name, blame, request) for name, blame in packets if name]),
            dropped=sum(not name for name, _ in (*gradients, *packets)),
        )


@lru_cache(maxsize=256)
def answer_shape(surfaces: tuple[str, ...], predecessors: tuple[str, ...]) -> TypeAdapter[Answer]:
    """What an answer looks like when these may be blamed.

    The schema is strict; what is read is not: a word outside a closed set is cheaper to do without than to ask for
    again, and a list that may hold nothing may be missing.
    """
    from pydantic import AfterValidator, TypeAdapter, WithJsonSchema

    lists = {
        **({"gradients": _list_schema("surface", surfaces, confidence=_CONFIDENCE)} if surfaces else {}),
        **({"packets": _list_schema("predecessor", predecessors)} if predecessors else {}),
    }
    schema = object_schema(diagnosis={"type": "string"}, **lists)
    shape: Any = Annotated[_lenient_model(), AfterValidator(_read), WithJsonSchema(schema)]
    return TypeAdapter(shape)


_CONFIDENCE = {"type": "number", "minimum": 0, "maximum": 1}


def _list_schema(name: str, aliases: tuple[str, ...], **more: Json) -> dict[str, Json]:
    fields: dict[str, Json] = {
        name: {"type": "string", "enum": list(aliases)},
        "text": {"type": "string"},
        "severity": {"type": "string", "enum": list(SEVERITIES)},
        "category": {"type": "string", "enum": list(CATEGORIES)},
    }
    return {"type": "array", "items": object_schema(**fields, **more)}


@cache
def _lenient_model() -> Any:
    from pydantic import BeforeValidator, StringConstraints, create_model

    word: Any = Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value).strip())]
    text: Any = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    fields: dict[str, Any] = {"text": (text, ...), "severity": (word, ""), "category": (word, "")}
    gradient: Any = create_model("Gradient", surface=(word, ""), confidence=(float, 1.0), **fields)
    packet: Any = create_model("Packet", predecessor=(word, ""), **fields)
    return create_model("Answer", gradients=(list[gradient], []), packets=(list[packet], []))


def _read(said: Any) -> Answer:
    if not said.model_fields_set:
        raise ValueError("it has neither gradients nor packets; give empty lists if nothing is to blame")
    return Answer(
        gradients=tuple(_blame(each, each.surface) for each in said.gradients),
        packets=tuple(_blame(each, each.predecessor) for each in said.packets),
    )


def _blame(said: Any, of: str) -> Blame:
    confidence = min(1.0, max(0.0, getattr(said, "confidence", 1.0)))
    return Blame(of=of, text=said.text, severity=said.severity, category=said.category, confidence=confidence)


def _resolved(said: str, ids: Mapping[str, str]) -> str | None:
    """The id that an alias or id means; what is left blank means the only candidate."""
    candidates = set(ids.values())
    if not said and len(candidates) == 1:
        return candidates.pop()
    return ids.get(said) or ids.get(said.upper())


def _gradient(surface_id: str, blame: Blame, request: BackwardRequest) -> SurfaceGradient:
    severity, category = _grade(blame, request)
    return SurfaceGradient(
        surface_id=surface_id,
        case_id=request.case_id,
        step_id=request.step.id,
        text=blame.text,
        severity=severity,
        category=category,
        draw=request.draw,
        turn=request.turn,
        confidence=blame.confidence,
        findings=incoming_findings(request),
    )


def _packet(target: str, blame: Blame, request: BackwardRequest) -> GradientPacket:
    severity, category = _grade(blame, request)
    return GradientPacket(
        source=request.step.id,
        target=target,
        text=blame.text,
        severity=severity,
        category=category,
        findings=incoming_findings(request),
    )


def _grade(blame: Blame, request: BackwardRequest) -> tuple[Severity, Category]:
    """As the model says; where it says nothing that is known, as the worst report that came in."""
    worst = min(((packet.severity, packet.category) for packet in request.incoming), default=(None, None))
    return _known(blame.severity, SEVERITIES, worst[0] or "P1"), _known(blame.category, CATEGORIES, worst[1] or "other")


def _known(said: str, words: tuple[W, ...], default: W) -> W:
    return next((word for word in words if word == said), default)


def _merged(packets: list[GradientPacket]) -> tuple[GradientPacket, ...]:
    """One packet for each predecessor: all that was said of it, as severe as the worst."""
    by_target: dict[str, list[GradientPacket]] = {}
    for packet in packets:
        by_target.setdefault(packet.target, []).append(packet)
    return tuple(_joined(same) for same in by_target.values())


def _joined(packets: list[GradientPacket]) -> GradientPacket:
    worst = min(packets, key=lambda packet: packet.severity)
    return replace(worst, text="\n".join(dict.fromkeys(packet.text for packet in packets)))
