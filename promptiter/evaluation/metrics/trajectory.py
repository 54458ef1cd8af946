"""Compare the tool calls of a turn with the expected ones: which tools, with which arguments, in which order.

Calls in any order are paired by a maximum matching, not greedily: `search(*)` must not take the call that only
`search(city)` could have taken. If not all expected calls can be paired, the earlier ones are: that decides which are
reported as missing. (Hopcroft-Karp, as in networkx, gives a matching of the same size but no such preference.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar, TypeAlias

from promptiter.evaluation.data.case import ExpectedToolCall
from promptiter.evaluation.metrics.json_match import (
    JsonCriterion,
    NotJsonError,
    check_against_schema,
    compare_json,
    parse_json,
)
from promptiter.evaluation.metrics.text_match import TextCriterion, compare_text
from promptiter.evaluation.score import Finding
from traces import ToolCall
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCriterion:
    """How one call is compared. Results are compared only if `result` is given; a reference of None allows any."""

    name: TextCriterion = field(default_factory=TextCriterion)
    arguments: JsonCriterion = field(default_factory=JsonCriterion)
    result: JsonCriterion | None = None

    @property
    def has_patterns(self) -> bool:
        parts = (self.name, self.arguments, self.result)
        return any(part is not None and part.has_patterns for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryCriterion:
    """How the calls of a turn are compared. `overrides` are by tool name; `subset_matching` allows extra calls."""

    default: ToolCriterion = field(default_factory=ToolCriterion)
    overrides: Mapping[str, ToolCriterion] = field(default_factory=dict)
    order_sensitive: bool = False
    subset_matching: bool = False
    needs_reference: ClassVar[bool] = True

    @property
    def has_patterns(self) -> bool:
        return any(each.has_patterns for each in (self.default, *self.overrides.values()))

    @property
    def description(self) -> str:
        order = "in this order" if self.order_sensitive else "in any order"
        return f"the tool calls, {order}" + (", others are allowed" if self.subset_matching else "")

    def for_tool(self, name: str) -> ToolCriterion:
        return self.overrides.get(name, self.default)


Fits: TypeAlias = Callable[[int, int], bool]
"""Whether the expected call at the first index matches the actual call at the second."""


def compare_tool_calls(
    actual: Sequence[ToolCall], expected: Sequence[ExpectedToolCall], criterion: TrajectoryCriterion
) -> tuple[Finding, ...]:
    """Compare the calls of a turn with the expected ones. No findings means that they match.

    A call of the right tool is reported with its differences, any other as missing or unexpected.
    """

    @cache
    def fits(wanted: int, got: int) -> bool:
        return not _compare_call(actual[got], expected[wanted], got, criterion)

    match = match_in_order if criterion.order_sensitive else match_in_any_order
    paired = match(len(expected), len(actual), fits)
    taken = set(paired.values())
    spare = [index for index in range(len(actual)) if index not in taken]
    findings: list[Finding] = []
    for wanted, call in enumerate(expected):
        if wanted in paired:
            continue
        nearest = _find_nearest_call(call, wanted, spare, actual, fits=fits, criterion=criterion)
        if nearest is None:
            where = f"expected tool call {wanted}"
            findings.append(Finding(kind="missing", expected=_call_to_json(call), where=where, predicate="tool_call"))
            continue
        spare.remove(nearest)
        findings += _compare_call(actual[nearest], call, nearest, criterion) or (
            Finding(
                kind="wrong",
                expected={"name": call.name, "position": wanted},
                actual={"name": actual[nearest].name, "position": nearest},
                where=f"tool call {nearest}",
                predicate="tool_order",
            ),
        )
    if not criterion.subset_matching:
        findings += (
            Finding(
                kind="unexpected",
                actual=_call_to_json(actual[index]),
                where=f"tool call {index}",
                predicate="tool_call",
            )
            for index in spare
        )
    return tuple(findings)


def match_in_any_order(wanted_count: int, got_count: int, fits: Fits) -> dict[int, int]:
    """The largest pairing of expected and actual calls in any order, as expected index to actual index."""
    taken_by: dict[int, int] = {}
    for start in range(wanted_count):
        _augment(start, got_count, fits, taken_by)
    return {wanted: got for got, wanted in sorted(taken_by.items(), key=lambda pair: pair[1])}


def match_in_order(wanted_count: int, got_count: int, fits: Fits) -> dict[int, int]:
    """The largest pairing of expected and actual calls that keeps the order of both."""
    paired: dict[int, int] = {}
    start = 0
    while start < min(wanted_count, got_count) and fits(start, start):
        paired[start] = start
        start += 1
    # best[i][j]: the size of the largest pairing of expected[i:] and actual[j:]
    best = [[0] * (got_count + 1) for _ in range(wanted_count + 1)]
    for wanted in range(wanted_count - 1, start - 1, -1):
        for got in range(got_count - 1, start - 1, -1):
            with_both = best[wanted + 1][got + 1] + 1 if fits(wanted, got) else 0
            best[wanted][got] = max(with_both, best[wanted + 1][got], best[wanted][got + 1])
    wanted = got = start
    while wanted < wanted_count and got < got_count:
        if fits(wanted, got) and best[wanted][got] == best[wanted + 1][got + 1] + 1:
            paired[wanted] = got
            wanted, got = wanted + 1, got + 1
        elif best[wanted][got] == best[wanted + 1][got]:
            wanted += 1
        else:
            got += 1
    return paired


def _augment(start: int, got_count: int, fits: Fits, taken_by: dict[int, int]) -> None:
    """Pair one more expected call by moving others along an augmenting path (Kuhn's algorithm, breadth first)."""
    reached_from: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        wanted = waiting.popleft()
        for got in range(got_count):
            if got in reached_from or not fits(wanted, got):
                continue
            reached_from[got] = wanted
            if got not in taken_by:
                _shift(got, reached_from, taken_by)
                return
            waiting.append(taken_by[got])


def _shift(got: int, reached_from: Mapping[int, int], taken_by: dict[int, int]) -> None:
    partner_of = {wanted: taken for taken, wanted in taken_by.items()}
    free: int | None = got
    while free is not None:
        wanted = reached_from[free]
        taken_by[free] = wanted
        free = partner_of.get(wanted)


def _find_nearest_call(
    call: ExpectedToolCall,
    wanted: int,
    spare: Sequence[int],
    actual: Sequence[ToolCall],
    *,
    fits: Fits,
    criterion: TrajectoryCriterion,
) -> int | None:
    """The spare call that was meant: one in the wrong position, or the same tool with the fewest differences."""
    same_tool = [
        index for index in spare if not compare_text(actual[index].name, call.name, criterion.for_tool(call.name).name)
    ]
    return min(
        same_tool,
        key=lambda index: (
            0 if fits(wanted, index) else len(_compare_call(actual[index], call, index, criterion)),
            abs(index - wanted),
        ),
        default=None,
    )


def _compare_call(
    actual: ToolCall, expected: ExpectedToolCall, index: int, criterion: TrajectoryCriterion
) -> tuple[Finding, ...]:
    strategy = criterion.for_tool(expected.name)
    where = f"tool call {index}"
    if compare_text(actual.name, expected.name, strategy.name):
        return (Finding(kind="wrong", expected=expected.name, actual=actual.name, where=where, predicate="tool_name"),)
    arguments = {} if actual.arguments is None else actual.arguments
    findings = _compare_part("arguments", arguments, expected.arguments, strategy.arguments)
    if strategy.result is not None:
        findings += _compare_part("result", actual.result, expected.result, strategy.result)
    return tuple(replace(finding, where=f"{where}, {finding.where}") for finding in findings)


def _compare_part(part: str, actual: Json, expected: Json, criterion: JsonCriterion) -> list[Finding]:
    actual, expected = _parse_like(actual, expected), _parse_like(expected, actual)
    is_any = expected is None
    found = check_against_schema(actual, criterion) if is_any else compare_json(actual, expected, criterion)
    return [
        replace(
            finding,
            where=f"{part} {finding.where}",
            predicate=f"tool_{part}" if finding.predicate == "json" else finding.predicate,
        )
        for finding in found
    ]


def _parse_like(value: Json, other: Json) -> Json:
    """Some traces record arguments and results as JSON text. Parse it if the other side is not text."""
    if isinstance(value, str) and isinstance(other, Mapping | list | tuple):
        try:
            return parse_json(value)
        except NotJsonError:
            return value
    return value


def _call_to_json(call: ToolCall | ExpectedToolCall) -> Json:
    return {"name": call.name, "arguments": call.arguments}
