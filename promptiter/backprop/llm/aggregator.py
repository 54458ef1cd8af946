"""LLMAggregator: a model merges all gradients of one surface into one signal of numbered points.

Equal and near-equal texts count as one point. The points are packed into prompts that fit and reduced in a tree: each
prompt gives a few points, and the points of several prompts are merged again. If all points fit into one prompt, it
takes one call; the number of calls is bounded for any number of gradients. The model names the points that it joins, so
each point of the signal is traced to its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import BaseModel

from promptiter.backprop.llm.feedback_points import FeedbackPoint, collect_points, join_points
from promptiter.backprop.llm.model_stage import ModelStage, build_object_schema
from promptiter.backprop.llm.prompts import compute_points_room, render_aggregate
from promptiter.backprop.llm.truncation import approximate_tokens, truncate
from promptiter.backprop.support_aggregator import build_signal
from promptiter.concurrency import run_together
from promptiter.errors import ModelError
from promptiter.llm.messages import Message, Role
from promptiter.llm.structured import build_shape
from promptiter.stages.contracts import AggregateRequest, AggregateResult
from promptiter.stages.losses import Severity
from promptiter.wording import plural

MOST_BATCHES = 64
"""Maximum number of prompts in the first level of the tree; the points with the fewest cases are left out."""

SHORTEST_POINT = 40
"""Points are cut to this many tokens before any of them is left out."""

OUTLIER_SHARE = 0.1
"""The severity of a signal is the worst that more than this share of its cases reach, so outliers do not decide."""


class LLMAggregator(ModelStage[AggregateRequest]):
    """Asks a model to merge the gradients of a surface. A custom `render` gets the whole request, in one call.

    It may ask for `{"text": "..."}` instead of points.
    """

    role: ClassVar[Role] = "aggregator"

    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        """Return one signal. If the model fails, the signal lists the unmerged points, and `error` says why."""
        points = collect_points(request.gradients)
        if len(points) <= 1:
            return summarize_gradients(request, points)
        if self.render is not None:
            merged = await self._merge(request, points, self.render(request))
        else:
            merged = await self._reduce(request, points)
        return replace(summarize_gradients(request, merged.points), error=merged.error)

    async def _reduce(self, request: AggregateRequest, points: Sequence[FeedbackPoint]) -> _Merged:
        limit, error = self.max_prompt_tokens, None
        batches, left_out = pack_points(points, room=compute_points_room(limit=limit))
        while True:
            prompts = [render_aggregate(request, batch, left_out=left_out, limit=limit) for batch in batches]
            calls = [self._merge(request, batch, prompt) for batch, prompt in zip(batches, prompts, strict=True)]
            merged = await run_together(calls)
            error = next((each.error for each in merged if each.error is not None), error)
            found = tuple(point for each in merged for point in each.points)
            before, (batches, left_out) = len(batches), pack_points(found, room=compute_points_room(limit=limit))
            if before == 1 or len(batches) >= before:  # merged, or the model does not join any more
                return _Merged(found, error)

    async def _merge(
        self, request: AggregateRequest, points: Sequence[FeedbackPoint], messages: tuple[Message, ...]
    ) -> _Merged:
        """Merge points into those of the model's answer; if it gives none, they stay as they are."""
        try:
            reply = await self.ask(_SIGNAL, messages, request, node_id=request.surface.node_id)
        except ModelError as failure:
            return _Merged(tuple(points), f"{type(failure).__name__}: {failure}")
        return _Merged(tuple(_build_points(reply, points)) or tuple(points))


@dataclass(frozen=True, slots=True)
class _Merged:
    points: tuple[FeedbackPoint, ...]
    error: str | None = None


class _PointReply(BaseModel):
    text: str
    joins: list[int] = []


class _SignalReply(BaseModel):
    points: list[_PointReply] = []
    text: str = ""


def _check_reply(reply: _SignalReply) -> _SignalReply:
    if not reply.model_fields_set:
        raise ValueError("it has no points")
    return reply


_SIGNAL = build_shape(
    _SignalReply,
    _check_reply,
    schema=build_object_schema(
        points={
            "type": "array",
            "items": build_object_schema(
                text={"type": "string"}, joins={"type": "array", "items": {"type": "integer"}}
            ),
        }
    ),
)


def _build_points(reply: _SignalReply, points: Sequence[FeedbackPoint]) -> Iterator[FeedbackPoint]:
    """The points of an answer with the evidence of those that they join; of all, if an answer names none."""
    for each in reply.points or [_PointReply(text=reply.text)]:
        joined = [points[number - 1] for number in dict.fromkeys(each.joins) if 1 <= number <= len(points)]
        if text := each.text.strip():
            yield join_points(joined or points, text=text)


def summarize_gradients(request: AggregateRequest, points: Sequence[FeedbackPoint]) -> AggregateResult:
    """Build a signal of these points with counted cases, support, severity and categories."""
    worst: dict[str, Severity] = {}
    for gradient in request.gradients:
        worst[gradient.case_id] = min(worst.get(gradient.case_id, gradient.severity), gradient.severity)
    severities = sorted(worst.values())
    severity = severities[int(len(severities) * OUTLIER_SHARE)] if severities else "P3"
    lines = (
        [point.text for point in points]
        if len(points) == 1
        else [
            f"{number}. {point.text} ({plural(len(point.case_ids), 'case')})" for number, point in enumerate(points, 1)
        ]
    )
    signal = build_signal(request, text="\n".join(lines), severity=severity)
    return replace(signal, points=tuple(point.as_signal_point() for point in points))


def pack_points(points: Sequence[FeedbackPoint], *, room: int) -> tuple[list[list[FeedbackPoint]], int]:
    """Pack points into batches that fit `room`, and count the points that are left out."""
    batches = _fill_batches(points, room=room, longest=room // 4)
    if len(batches) <= MOST_BATCHES:
        return batches, 0
    longest = max(SHORTEST_POINT, min(room // 4, MOST_BATCHES * room // len(points)))
    kept = _fill_batches(points, room=room, longest=longest)[:MOST_BATCHES]
    return kept, len(points) - sum(map(len, kept))


def _fill_batches(points: Sequence[FeedbackPoint], *, room: int, longest: int) -> list[list[FeedbackPoint]]:
    batches: list[list[FeedbackPoint]] = []
    left = 0
    for point in points:
        point = replace(point, text=truncate(point.text, longest))
        size = approximate_tokens(point.as_line(len(points))) + 1
        if size > left:
            batches.append([])
            left = room
        batches[-1].append(point)
        left -= size
    return batches
