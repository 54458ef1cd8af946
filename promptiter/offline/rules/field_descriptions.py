"""Descriptions of the fields of a structured output: what a field holds, from what its references hold.

Each example is reduced to one field. A description names the field of the input whose values the references have, or
the few values that they are, and how values are written. If it names something new, nothing of the old one is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from promptiter.backprop.step_text import json_leaves, json_text
from promptiter.offline.rules.examples import SampleSet, collect_evidence
from promptiter.offline.rules.predicates import Support, find_qualified
from promptiter.offline.rules.prompt_editing import Ask, Prompt
from promptiter.offline.rules.rule_templates import describe_field
from promptiter.offline.text.fields import spell_field_name
from promptiter.offline.text.matching import read_object
from promptiter.stages.optimizer import StepExample
from promptiter.structure import Surface
from traces.model import Json


def iterate_descriptions(
    surface: Surface, failing: Iterable[StepExample], passing: Iterable[StepExample]
) -> Iterator[tuple[str, tuple[Support, ...]]]:
    """Descriptions of an output field, the best first, each with the predicates that it asks for."""
    evidence = collect_field_evidence(surface.part, (*failing, *passing))
    found = find_qualified(evidence) if evidence.failing else []
    by_family = {name: [each for each in found if each.predicate.family == name] for name in (*_HEADS, *_FORMS)}
    forms = [support for name in _FORMS[:-1] for support in by_family[name]] or by_family["verbatim"]
    if evidence.compared == "number":  # a JSON number has no form of its own
        forms = []
    own_name = f"The {spell_field_name(surface.part.rpartition('.')[2])}."
    labels = (*by_family["enumeration"], *by_family["label_cue"])
    starts: list[tuple[str, tuple[Support, ...]]] = [
        (text, (support,)) for support in by_family["source"] for text in _describe(support)
    ]
    if labels:
        kept = own_name if by_family["enumeration"] else surface.value
        starts.append((_add(kept, labels), labels))
    if not starts:
        starts.append((surface.value or own_name, ()))
    for text, supports in starts:
        yield _add(text, forms), (*supports, *forms)
    for text, supports in starts if forms else ():
        yield text, supports
    if evidence.failing:
        yield own_name, ()


def collect_field_evidence(path: str, examples: Collection[StepExample]) -> SampleSet:
    """The evidence of one field: its values in outputs and references. An example fails only if this field is wrong."""
    narrowed = [each for example in examples if (each := _narrow(example, path)) is not None]
    failing = [example for example in narrowed if not example.passed]
    passing = [example for example in narrowed if example.passed]
    evidence = replace(collect_evidence(failing, passing), field=spell_field_name(path))
    is_number = any(isinstance(_find_part(example.expected or "", path), int | float) for example in examples)
    return replace(evidence, compared="number") if is_number else evidence


_HEADS = ("source", "enumeration", "label_cue")
_FORMS = ("date_format", "decimals", "whole_numbers", "upper_case", "language", "verbatim")
"""How values are written. Exactly as in the input, unless another form is wanted."""


def _narrow(example: StepExample, path: str) -> StepExample | None:
    """The example reduced to a field; None if it does not show what the field should hold."""
    output = _read_field(example.output, path)
    expected = _read_field(example.expected or "", path) if example.is_terminal else _find_lost_value(example)
    if output is None or (expected is None and not example.passed):
        return None
    is_right = example.passed or output == expected
    return replace(
        example, output=output, expected=expected, passed=is_right, is_terminal=True, tool_calls=(), findings=()
    )


def _find_lost_value(example: StepExample) -> str | None:
    """What the answer lacks because of the field, if it is one value."""
    lost = {json_text(finding.expected) for finding in example.findings if finding.kind in ("missing", "wrong")}
    return lost.pop() if len(lost) == 1 else None


def _read_field(text: str, path: str) -> str | None:
    """The value at a path of a JSON object, the items of a list in one line; None if there is none."""
    part = _find_part(text, path)
    if part is None or isinstance(part, dict):
        return None
    return ", ".join(json_text(leaf) for _, leaf in json_leaves(part))


def _find_part(text: str, path: str) -> Json:
    part: Json = read_object(text)
    for key in path.split("."):
        if isinstance(part, list):
            part = [item[key] for item in part if isinstance(item, dict) and key in item]
        else:
            part = part.get(key) if isinstance(part, dict) else None
    return part


def _describe(support: Support) -> tuple[str, ...]:
    return describe_field(support.predicate.family, support.predicate.parameters)


def _add(text: str, supports: Sequence[Support]) -> str:
    """The description with a sentence for each predicate; a format in it is replaced."""
    prompt = Prompt(text=text)
    for support in supports:
        ask = Ask(support.predicate.family, support.predicate.parameters)
        prompt = replace(prompt, text=prompt.list_placements(ask, _describe(support))[0])
    return prompt.text
