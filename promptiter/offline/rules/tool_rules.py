"""Predicates about tool calls: which tools are called, in what order, and with which arguments.

They follow the expected calls of cases. For the description of a tool, only rules about that tool are found.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from promptiter.backprop.step_text import json_text
from promptiter.offline.rules.examples import (
    MIN_SHARE,
    Predicate,
    Sample,
    SampleSet,
    Verdict,
    is_safe_literal,
    take_one_per_case,
)
from promptiter.offline.rules.phrase_rules import count_texts_by_word
from promptiter.offline.rules.rule_templates import join_list, with_article
from promptiter.offline.text.fields import spell_field_name
from promptiter.offline.text.matching import normalize
from traces.model import Json


def detect_tools_called(evidence: SampleSet) -> Iterator[Predicate]:
    """A tool is called where it is expected: always, or if the input has what those inputs have in common.

    A description says when a tool is useful: if the input gives what its arguments are, even where that is always so.
    """
    known = [sample for sample in evidence.samples if sample.expected_tool_calls is not None]
    for tool in _list_expected_tools(evidence):
        wanting = [sample for sample in known if tool in list_tool_names(sample.expected_tool_calls)]
        others = [sample for sample in known if tool not in list_tool_names(sample.expected_tool_calls)]
        if len({sample.case_id for sample in wanting}) < 2:
            continue
        family = "use_tool" if evidence.tool else "call_tool"
        name = () if evidence.tool else (tool,)
        if len(wanting) >= MIN_SHARE * len(known):
            if sources := _list_sources(evidence, tool) if evidence.tool else ():
                condition = f"the input gives {join_list([with_article(source) for source in sources])}"
                yield _tool_call_predicate(f"{family}_when", (condition,), tool)
            yield _tool_call_predicate(family, name, tool)
        elif condition := _find_condition(wanting, others, min_cases=evidence.min_cases):
            yield _tool_call_predicate(f"{family}_when", (*name, condition), tool)


def detect_tools_avoided(evidence: SampleSet) -> Iterator[Predicate]:
    """A tool that is never expected is not called."""
    if evidence.tool:
        return
    expected = {name for sample in evidence.samples for name in list_tool_names(sample.expected_tool_calls)}
    called = {name for sample in evidence.failing for name in list_tool_names(sample.tool_calls)}
    yield from (_no_tool_predicate(tool) for tool in sorted(called - expected) if is_safe_literal(tool))


def detect_tool_order(evidence: SampleSet) -> Iterator[Predicate]:
    """The tools are called in the expected order."""
    orders = Counter(order for each in evidence.samples if len(order := _read_order(each.expected_tool_calls)) > 1)
    best = min(orders, key=lambda order: (-orders[order], order), default=())
    if evidence.tool or not best or not all(_can_call(evidence, name) for name in best):
        return

    def wants(sample: Sample) -> Verdict:
        return None if sample.expected_tool_calls is None else _read_order(sample.expected_tool_calls) == best

    yield Predicate(
        family="tool_order",
        parameters=best,
        wants=wants,
        has=lambda sample: tuple(name for name in _read_order(sample.tool_calls) if name in best) == best,
        fault=f"do not call {', '.join(best)} in this order",
        virtue="do",
    )


def detect_arguments(evidence: SampleSet) -> Iterator[Predicate]:
    """An argument has the value of a field of the input."""
    for tool in _list_expected_tools(evidence):
        for name, source in _find_sources(evidence, tool):
            if is_safe_literal(name):
                yield _argument_predicate(tool, name, source)


def list_tool_names(calls: Sequence[Json] | None) -> list[str]:
    return [str(call.get("name", "")) for call in calls or () if isinstance(call, dict)]


def list_arguments(calls: Sequence[Json] | None, tool: str) -> list[dict[str, Json]]:
    """The arguments of each call of a tool; some traces keep them as JSON text."""
    found = []
    for call in calls or ():
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


def _list_expected_tools(evidence: SampleSet) -> list[str]:
    expected = {name for sample in evidence.failing for name in list_tool_names(sample.expected_tool_calls)}
    return sorted(name for name in expected if _can_call(evidence, name) and evidence.tool in ("", name))


def _can_call(evidence: SampleSet, tool: str) -> bool:
    """Whether the tool is one of this node: another node may have to call what a case expects."""
    if not is_safe_literal(tool):
        return False
    is_blamed = any(finding.predicate.startswith("tool") for each in evidence.failing for finding in each.findings)
    is_called = any(tool in list_tool_names(sample.tool_calls) for sample in evidence.samples)
    return is_called or (tool in evidence.tools if evidence.tools else is_blamed)


def _tool_call_predicate(family: str, parameters: tuple[str, ...], tool: str) -> Predicate:
    is_conditional = family.endswith("_when")

    def wants(sample: Sample) -> Verdict:
        if sample.expected_tool_calls is None:
            return None
        return tool in list_tool_names(sample.expected_tool_calls) or (None if is_conditional else False)

    return Predicate(
        family=family,
        parameters=parameters,
        wants=wants,
        has=lambda sample: tool in list_tool_names(sample.tool_calls),
        fault=f"lack a call of {tool}",
        virtue="have one",
        subject=tool,
        is_conditional=is_conditional,
    )


def _no_tool_predicate(tool: str) -> Predicate:
    return Predicate(
        family="no_tool",
        parameters=(tool,),
        wants=lambda sample: None if sample.expected_tool_calls is None else True,
        has=lambda sample: tool not in list_tool_names(sample.tool_calls),
        fault=f"call {tool}, which is never expected",
        virtue="do not",
        subject=tool,
    )


def _argument_predicate(tool: str, argument: str, source: str) -> Predicate:
    def has_expected_values(sample: Sample, calls: Sequence[Json] | None) -> Verdict:
        expected = [each[argument] for each in list_arguments(sample.expected_tool_calls, tool) if argument in each]
        given = [each.get(argument) for each in list_arguments(calls, tool)]
        if not expected or not given:
            return None
        pairs = zip(given, expected, strict=False)
        return all(normalize(json_text(value)) == normalize(json_text(wanted)) for value, wanted in pairs)

    return Predicate(
        family="argument_source",
        parameters=(tool, argument, source),
        wants=lambda sample: has_expected_values(sample, sample.expected_tool_calls),
        has=lambda sample: has_expected_values(sample, sample.tool_calls),
        fault=f"call {tool} with a wrong {argument}",
        virtue="call it with the right one",
        subject=f"{tool} {argument}",
    )


def _find_condition(wanting: Sequence[Sample], others: Sequence[Sample], *, min_cases: int) -> str:
    """What all inputs that want a tool have in common and no other has: a field, or a word."""
    if not wanting or not others:
        return ""
    shared = set.intersection(*(set(sample.fields) for sample in wanting))
    elsewhere = {name for sample in others for name in sample.fields}
    distinctive = [name for name in wanting[0].fields if name in shared and name not in elsewhere]
    if distinctive and is_safe_literal(distinctive[0]):
        return f"the input gives the {distinctive[0]}"
    inputs = [sample.input for sample in take_one_per_case(wanting)]
    counts = count_texts_by_word(inputs)
    in_others = count_texts_by_word(sample.input for sample in others)
    needed = max(min_cases, MIN_SHARE * len(inputs))
    cues = [word for word, count in counts.items() if count >= needed and not in_others[word]]
    return f'the input mentions "{min(cues, key=lambda word: (-counts[word], word))}"' if cues else ""


def _read_order(calls: Sequence[Json] | None) -> tuple[str, ...]:
    """The tools in the order of their first calls."""
    return tuple(dict.fromkeys(list_tool_names(calls)))


def _list_sources(evidence: SampleSet, tool: str) -> tuple[str, ...]:
    """The fields that the arguments of a tool come from, each once."""
    return tuple(dict.fromkeys(source for _, source in _find_sources(evidence, tool)))


def _find_sources(evidence: SampleSet, tool: str) -> Iterator[tuple[str, str]]:
    """The expected arguments of a tool whose values come from a field of the input, with that field."""
    expected = [
        (sample, arguments)
        for sample in take_one_per_case(evidence.samples)
        for arguments in list_arguments(sample.expected_tool_calls, tool)[:1]
    ]
    for name in sorted({name for _, arguments in expected for name in arguments}):
        values = [(sample, json_text(each[name])) for sample, each in expected if each.get(name) is not None]
        if source := _find_source(name, values):
            yield name, source


def _find_source(argument: str, values: Sequence[tuple[Sample, str]]) -> str:
    """The field that nearly always has the argument's value, preferably the one with the argument's name."""
    if len({value for _, value in values}) < 2:
        return ""
    counts = Counter(
        name
        for sample, value in values
        for name, known in sample.fields.items()
        if normalize(value) in map(normalize, known)
    )
    own = spell_field_name(argument)
    best = min(counts, key=lambda name: (-counts[name], name != own, name), default="")
    return best if counts[best] >= max(2, MIN_SHARE * len(values)) and is_safe_literal(best) else ""
