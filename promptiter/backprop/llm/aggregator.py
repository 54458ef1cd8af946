"""LLMAggregator: a model merges all gradients of one surface into one signal.

Equal and near-equal texts count as one point. The points are packed into prompts that fit and reduced in a tree: each
prompt gives one signal, and the signals of several prompts become points again. If all points fit into one prompt, it
takes one call; the number of calls is bounded for any number of gradients.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar
from zlib import crc32

from pydantic import BaseModel

from promptiter.backprop.llm.model_stage import ModelStage, build_object_schema
from promptiter.backprop.llm.prompts import FeedbackPoint, compute_points_room, render_aggregate
from promptiter.backprop.llm.truncation import approximate_tokens, truncate
from promptiter.backprop.support_aggregator import build_signal
from promptiter.concurrency import run_together
from promptiter.errors import ModelError
from promptiter.evaluation.data.health import normalize_text
from promptiter.evaluation.data.near_duplicates import NEAR
from promptiter.grouping import group_by
from promptiter.llm.messages import Message, Role
from promptiter.llm.structured import build_shape
from promptiter.stages.contracts import AggregateRequest, AggregateResult, SurfaceGradient
from promptiter.stages.losses import Severity
from traces.snapshots import escape_surrogates

MOST_BATCHES = 64
"""Maximum number of prompts in the first level of the tree; the points with the fewest cases are left out."""

SHORTEST_POINT = 40
"""Points are cut to this many tokens before any of them is left out."""

OUTLIER_SHARE = 0.1
"""The severity of a signal is the worst that more than this share of its cases reach, so outliers do not decide."""

MARKS, MOST_COMPARED = 4, 4
"""Number of features that mark a text, and the maximum number of texts it is compared with per mark."""


class LLMAggregator(ModelStage[AggregateRequest]):
    """Asks a model to merge the gradients of a surface. A custom `render` gets the whole request, in one call."""

    role: ClassVar[Role] = "aggregator"

    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        """Return one signal. If the model fails, the signal lists the unmerged points, and `error` says why."""
        points = collect_points(request.gradients)
        if len(points) <= 1:
            return summarize_gradients(request, text="".join(point.text for point in points))
        if self.render is not None:
            merged = await self._merge(request, points, self.render(request))
        else:
            merged = await self._reduce(request, points)
        return replace(summarize_gradients(request, text=merged.point.text), error=merged.error)

    async def _reduce(self, request: AggregateRequest, points: Sequence[FeedbackPoint]) -> _MergedPoint:
        limit, error = self.max_prompt_tokens, None
        batches, left_out = pack_points(points, room=compute_points_room(limit=limit))
        while True:
            prompts = [render_aggregate(request, batch, left_out=left_out, limit=limit) for batch in batches]
            calls = [self._merge(request, batch, prompt) for batch, prompt in zip(batches, prompts, strict=True)]
            merged = await run_together(calls)
            error = next((each.error for each in merged if each.error is not None), error)
            if len(merged) == 1:
                return _MergedPoint(merged[0].point, error)
            batches, left_out = pack_points([each.point for each in merged], room=compute_points_room(limit=limit))

    async def _merge(
        self, request: AggregateRequest, points: Sequence[FeedbackPoint], messages: tuple[Message, ...]
    ) -> _MergedPoint:
        """Merge points into one with the model's text, or with all their texts if it gives none."""
        try:
            text = await self.ask(_SIGNAL, messages, request, node_id=request.surface.node_id)
            error = None
        except ModelError as failure:
            text, error = "", f"{type(failure).__name__}: {failure}"
        if not text:
            text = truncate(
                "\n".join(point.as_line() for point in points), compute_points_room(limit=self.max_prompt_tokens)
            )
        return _MergedPoint(_join_points(points, text=text), error)


@dataclass(frozen=True, slots=True)
class _MergedPoint:
    point: FeedbackPoint
    error: str | None


class _SignalReply(BaseModel):
    text: str


_SIGNAL = build_shape(
    _SignalReply, lambda reply: reply.text.strip(), schema=build_object_schema(text={"type": "string"})
)


def summarize_gradients(request: AggregateRequest, *, text: str) -> AggregateResult:
    """Build a signal with counted cases, support, severity and categories."""
    worst: dict[str, Severity] = {}
    for gradient in request.gradients:
        worst[gradient.case_id] = min(worst.get(gradient.case_id, gradient.severity), gradient.severity)
    severities = sorted(worst.values())
    severity = severities[int(len(severities) * OUTLIER_SHARE)] if severities else "P3"
    return build_signal(request, text=text, severity=severity)


def collect_points(gradients: Iterable[SurfaceGradient]) -> list[FeedbackPoint]:
    """Merge equal and near-equal gradients into points, the most severe and most frequent first."""
    by_words = group_by(gradients, lambda gradient: normalize_text(escape_surrogates(gradient.text)))
    equal = {words: _build_point(by_words[words]) for words in sorted(by_words)}
    return sorted(_cluster_points(equal), key=lambda point: (point.severity, -len(point.case_ids), point.text))


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
        size = approximate_tokens(point.as_line()) + 1
        if size > left:
            batches.append([])
            left = room
        batches[-1].append(point)
        left -= size
    return batches


def _build_point(gradients: Sequence[SurfaceGradient]) -> FeedbackPoint:
    spellings = Counter(escape_surrogates(gradient.text).strip() for gradient in gradients)
    return FeedbackPoint(
        text=min(spellings, key=lambda text: (-spellings[text], text)),
        count=len(gradients),
        case_ids=frozenset(gradient.case_id for gradient in gradients),
        severity=min(gradient.severity for gradient in gradients),
        categories=tuple(sorted({gradient.category for gradient in gradients})),
    )


def _join_points(points: Sequence[FeedbackPoint], *, text: str) -> FeedbackPoint:
    return FeedbackPoint(
        text=text,
        count=sum(point.count for point in points),
        case_ids=frozenset().union(*(point.case_ids for point in points)),
        severity=min(point.severity for point in points),
        categories=tuple(sorted({category for point in points for category in point.categories})),
    )


def _cluster_points(equal: Mapping[str, FeedbackPoint]) -> Iterator[FeedbackPoint]:
    """Merge near-equal points into one with the most frequent wording.

    A text is compared only with texts that lead a cluster and share one of its first marks, so the time is linear. Of
    near-equal pairs, all but one in six hundred share one of four marks.
    """
    clusters: list[tuple[frozenset[str], list[FeedbackPoint]]] = []
    leaders: dict[tuple[frozenset[str], int], list[int]] = {}
    for words in sorted(equal, key=lambda words: (-equal[words].count, words)):
        features = _extract_features(words)
        marks = [(features & _NEGATIONS, mark) for mark in sorted(map(crc32, map(str.encode, features)))[:MARKS]]
        candidates = dict.fromkeys(number for mark in marks for number in leaders.get(mark, ())[:MOST_COMPARED])
        home = next((number for number in candidates if _is_near(features, clusters[number][0])), None)
        if home is not None:
            clusters[home][1].append(equal[words])
            continue
        clusters.append((features, [equal[words]]))
        for mark in marks:
            leaders.setdefault(mark, []).append(len(clusters) - 1)
    for _, same in clusters:
        yield _join_points(same, text=same[0].text)


_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+(?:['’]\w+)?")
_NEGATIONS = frozenset(
    re.findall(
        r"\S+",
        "no not never none nor without cannot don't doesn't isn't aren't can't shouldn't won't "
        "nicht kein keine nie ohne ne pas sans sin nunca 不 没 沒 无 無 非 勿 别 別",
    )
)
"""Texts that differ in these words are never merged: `use dates` and `never use dates` are almost the same words."""


def _extract_features(text: str) -> frozenset[str]:
    """The words and the pairs of adjacent words. Near-equal texts may differ in one word of fifteen."""
    words = _WORD.findall(text.replace("’", "'"))
    return frozenset((*words, *map(" ".join, pairwise(words)))) or frozenset((text,))


def _is_near(one: frozenset[str], other: frozenset[str]) -> bool:
    if min(len(one), len(other)) < NEAR * max(len(one), len(other)):
        return False
    shared = len(one & other)
    return shared >= NEAR * (len(one) + len(other) - shared)
