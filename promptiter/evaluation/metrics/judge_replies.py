"""The replies of judges: a verdict on each rubric, or whether a response is valid.

A judge must answer every configured rubric exactly once; otherwise it is shown its mistake and asked again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from promptiter.llm.structured import build_shape


@dataclass(frozen=True, slots=True)
class RubricVerdict:
    """The verdict of one sample on one rubric."""

    passed: bool
    reason: str


_CLOSED = ConfigDict(json_schema_extra={"additionalProperties": False})
"""Servers hold answers only to schemas that allow no other fields. Parsing still ignores them."""


class _ValidReply(BaseModel):
    model_config = ConfigDict(title="Answer", **_CLOSED)
    reason: str
    valid: bool


VALID_SHAPE: TypeAdapter[tuple[RubricVerdict, ...]] = build_shape(
    _ValidReply, lambda reply: (RubricVerdict(reply.valid, reply.reason),)
)


@lru_cache(maxsize=64)
def make_rubric_shape(ids: tuple[str, ...]) -> TypeAdapter[tuple[RubricVerdict, ...]]:
    """Verdicts on exactly these rubrics, accepted in any order and returned in the order of the ids."""

    def check_each_once(reply: Any) -> tuple[RubricVerdict, ...]:
        counts = Counter(each.id for each in reply.verdicts)
        if missing := [name for name in ids if not counts[name]]:
            raise ValueError(f"the verdict on {', '.join(missing)} is missing; judge every rubric")
        if repeated := [name for name in ids if counts[name] > 1]:
            raise ValueError(f"there are several verdicts on {', '.join(repeated)}; judge every rubric once")
        given = {each.id: RubricVerdict(each.passed, each.reason) for each in reply.verdicts}
        return tuple(given[name] for name in ids)

    known: Any = Literal[ids]
    verdict: Any = create_model("Verdict", __config__=_CLOSED, id=(known, ...), reason=(str, ...), passed=(bool, ...))
    one_each = Field(json_schema_extra={"minItems": len(ids), "maxItems": len(ids)})
    return build_shape(create_model("Answer", __config__=_CLOSED, verdicts=(list[verdict], one_each)), check_each_once)
