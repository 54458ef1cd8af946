"""Predicates about tool calls: which tools are called, in what order, and with what arguments.

Expected calls say what is right. For the description of a tool, only rules about that tool are found.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from promptiter.offline.rules.examples import (
    Evidence,
    Predicate,
    Sample,
    Verdict,
    is_safe_literal,
    one_by_case,
    plain,
)
from promptiter.offline.rules.phrase_rules import words_shared
from promptiter.offline.text.dates import DATE_FORMATS, dates_in
from promptiter.offline.text.fields import as_written, field_name
from traces.model import Json

MOST_SHARE = 0.9
MOST_CHOICES = 6


def tool_called(evidence: Evidence) -> Iterator[Predicate]:
    """A tool is called where it is expected: always, or when the input has what those inputs have in common."""
    told = [sample for sample in evidence.samples if sample.expected_tool_calls is not None]
    for tool in _tools(evidence):
        wanting = [sample for sample in told if tool in names_of(sample.expected_tool_calls)]
        others = [sample for sample in told if tool not in names_of(sample.expected_tool_calls)]
        if len({sample.case_id for sample in wanting}) < 2:
            continue
        family = "use_tool" if evidence.tool else "call_tool"
        name = () if evidence.tool else (tool,)
        if len(wanting) >= MOST_SHARE * len(told):
            yield _tool_called(family, name, tool)
        elif condition := _condition(wanting, others, fewest=evidence.fewest):
            yield _tool_called(f"{family}_when", (*name, condition), tool)


def tool_avoided(evidence: Evidence) -> Iterator[Predicate]:
    """A tool that no reference calls is not called."""
    if evidence.tool:
        return
    expected = {name for sample in evidence.samples for name in names_of(sample.expected_tool_calls or ())}
    called = {name for sample in evidence.failing for name in names_of(sample.tool_calls)}
    for tool in sorted(called - expected):
        if is_safe_literal(tool):
            yield _tool_avoided(tool)


def tool_order(evidence: Evidence) -> Iterator[Predicate]:
    """The tools are called in the order in which the references call them."""
    orders = Counter(order for sample in evidence.samples if len(order := _order(sample.expected_tool_calls)) > 1)
    best = min(orders, key=lambda order: (-orders[order], order), default=())
    if evidence.tool or not best or not all(_can_call(evidence, name) for name in best):
        return
    spoken = ", ".join(best)
    yield Predicate(
        family="tool_order",
        parameters=best,
        wants=lambda sample: None if sample.expected_tool_calls is None else _order(sample.expected_tool_calls) == best,
        has=lambda sample: tuple(name for name in _order(sample.tool_calls) if name in best) == best,
        fault=f"do not call {spoken} in this order",
        virtue="do",
    )


def arguments(evidence: Evidence) -> Iterator[Predicate]:
    """An argument has the value of a field of the input, is a date in one format, or comes out of a small set."""
    for tool in _tools(evidence):
        names = {
            name
            for sample in evidence.samples
            for call in calls_of(sample.expected_tool_calls or (), tool)
            for name in call
        }
        for argument in sorted(names):
            values = _expected_values(evidence, tool, argument)
            if values and is_safe_literal(argument):
                yield from _about_argument(tool, argument, values, fewest=evidence.fewest)


def names_of(calls: Sequence[Json] | None) -> list[str]:
    """The names of the tools called."""
    return [str(call.get("name", "")) for call in calls or () if isinstance(call, dict)]


def calls_of(calls: Sequence[Json], tool: str) -> list[dict[str, Json]]:
    """The arguments of each call of a tool; some traces keep them as JSON text."""
    found = []
    for call in calls:
        if not isinstance(call, dict) or call.get("name") != tool:
            continue
        given = call.get("arguments")
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except ValueError:
                continue
        if isinstance(given, dict):
            found.append(given)
    return found


_Values = list[tuple[Sample, str]]


def _tools(evidence: Evidence) -> list[str]:
    expected = {name for sample in evidence.failing for name in names_of(sample.expected_tool_calls)}
    return sorted(name for name in expected if _can_call(evidence, name) and evidence.tool in ("", name))


def _can_call(evidence: Evidence, tool: str) -> bool:
    """Whether the tool is one of this node: what a case expects, another node may have to call."""
    if not is_safe_literal(tool):
        return False
    is_blamed = any(finding.predicate.startswith("tool") for each in evidence.failing for finding in each.findings)
    is_called = any(tool in names_of(sample.tool_calls) for sample in evidence.samples)
    return is_called or (tool in evidence.tools if evidence.tools else is_blamed)


def _tool_called(family: str, parameters: tuple[str, ...], tool: str) -> Predicate:
    def wants(sample: Sample) -> Verdict:
        if sample.expected_tool_calls is None:
            return None
        is_expected = tool in names_of(sample.expected_tool_calls)
        return is_expected or (None if family.endswith("_when") else False)

    return Predicate(
        family=family,
        parameters=parameters,
        wants=wants,
        has=lambda sample: tool in names_of(sample.tool_calls),
        fault=f"come without a call of {tool}",
        virtue="come with one",
        subject=tool,
        is_conditional=family.endswith("_when"),
    )


def _tool_avoided(tool: str) -> Predicate:
    return Predicate(
        family="no_tool",
        parameters=(tool,),
        wants=lambda sample: None if sample.expected_tool_calls is None else True,
        has=lambda sample: tool not in names_of(sample.tool_calls),
        fault=f"come with a call of {tool}, which no reference has",
        virtue="come without",
        subject=tool,
    )


def _condition(wanting: Sequence[Sample], others: Sequence[Sample], *, fewest: int) -> str:
    """What all inputs that want a tool have in common, and no other: a field, or a word that several of them hold."""
    if not wanting or not others:
        return ""
    shared = set.intersection(*(set(sample.fields) for sample in wanting))
    elsewhere = {name for sample in others for name in sample.fields}
    telling = [name for name in wanting[0].fields if name in shared and name not in elsewhere]
    if telling and is_safe_literal(telling[0]):
        return f"the input gives the {telling[0]}"
    counts = words_shared(sample.input for sample in one_by_case(wanting))
    in_others = words_shared(sample.input for sample in others)
    needed = max(fewest, MOST_SHARE * len(one_by_case(wanting)))
    cues = [word for word, count in counts.items() if count >= needed and not in_others[word]]
    return f'the input mentions "{min(cues, key=lambda word: (-counts[word], word))}"' if cues else ""


def _order(calls: Sequence[Json] | None) -> tuple[str, ...]:
    """The tools in the order of their first calls."""
    return tuple(dict.fromkeys(names_of(calls)))


def _expected_values(evidence: Evidence, tool: str, argument: str) -> _Values:
    return [
        (sample, as_written(call[argument]))
        for sample in one_by_case(evidence.samples)
        for call in calls_of(sample.expected_tool_calls or (), tool)[:1]
        if call.get(argument) is not None
    ]


def _about_argument(tool: str, argument: str, values: _Values, *, fewest: int) -> Iterator[Predicate]:
    told = partial(_argument_predicate, tool=tool, argument=argument)
    source = _source(argument, values)
    if source:
        yield told(
            "argument_source", (tool, argument, source), test=lambda value, wanted: plain(value) == plain(wanted)
        )
    format_name = _date_format([value for _, value in values])
    if format_name:
        yield told("argument_date", (tool, argument, format_name), test=lambda value, _: _is_dated(value, format_name))
    choices = Counter(value for _, value in values)
    is_small = len(choices) <= MOST_CHOICES and min(choices.values()) >= fewest - 1
    if not source and is_small and len(values) >= fewest and all(map(is_safe_literal, choices)):
        known = tuple(sorted(choices))
        yield told("argument_domain", (tool, argument, *known), test=lambda value, _: value in known)


def _argument_predicate(
    family: str, parameters: tuple[str, ...], *, tool: str, argument: str, test: Callable[[str, str], bool]
) -> Predicate:
    def verdict(sample: Sample, calls: Sequence[Json]) -> Verdict:
        expected = [call[argument] for call in calls_of(sample.expected_tool_calls or (), tool) if argument in call]
        given = [call.get(argument) for call in calls_of(calls, tool)]
        if not expected or not given:
            return None
        pairs = zip(given, expected, strict=False)
        return all(value is not None and test(as_written(value), as_written(wanted)) for value, wanted in pairs)

    return Predicate(
        family=family,
        parameters=parameters,
        wants=lambda sample: verdict(sample, sample.expected_tool_calls or ()),
        has=lambda sample: verdict(sample, sample.tool_calls),
        fault=f"call {tool} with a wrong {argument}",
        virtue="call it with the right one",
        subject=f"{tool} {argument}",
    )


def _source(argument: str, values: _Values) -> str:
    """The field that nearly always has the argument's value; one of its own name first."""
    if len({value for _, value in values}) < 2:
        return ""
    counts = Counter(
        name for sample, value in values for name, known in sample.fields.items() if plain(value) in map(plain, known)
    )
    own = field_name(argument)
    best = min(counts, key=lambda name: (-counts[name], name != own, name), default="")
    return best if counts[best] >= max(2, MOST_SHARE * len(values)) and is_safe_literal(best) else ""


def _date_format(values: Sequence[str]) -> str:
    fitting = [name for name in DATE_FORMATS if all(_is_dated(value, name) for value in values)]
    return fitting[0] if fitting and len(values) > 1 else ""


def _is_dated(value: str, format_name: str) -> bool:
    days = dates_in(value)
    return len(days) == 1 and days[0].text == value and days[0].is_written_as(format_name)
