"""The predicates that explain why a step fails: found by detectors, tested on all evidence, ranked.

A predicate qualifies if the references want it, failing outputs lack it, and passing ones have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from promptiter.offline.rules import (
    field_rules,
    label_rules,
    phrase_rules,
    structure_rules,
    tool_rules,
    value_rules,
)
from promptiter.offline.rules.examples import Detector, Predicate, Sample, SampleSet, Verdict

DETECTORS: tuple[Detector, ...] = (
    tool_rules.detect_tool_order,
    tool_rules.detect_tools_called,
    tool_rules.detect_tools_avoided,
    tool_rules.detect_arguments,
    phrase_rules.detect_rubrics,
    label_rules.detect_enumeration,
    label_rules.detect_label_cues,
    field_rules.detect_field_only,
    label_rules.detect_value_only,
    structure_rules.detect_json_keys,
    structure_rules.detect_json_only,
    field_rules.detect_fields_carried,
    label_rules.detect_citation,
    value_rules.detect_date_format,
    value_rules.detect_decimals,
    label_rules.detect_language,
    label_rules.detect_upper_case,
    phrase_rules.detect_prefix,
    phrase_rules.detect_suffix,
    structure_rules.detect_json_object,
    field_rules.detect_all_fields_carried,
    field_rules.detect_verbatim,
    phrase_rules.detect_lengths,
    phrase_rules.detect_keywords,
)
"""In order of preference among predicates that explain equally many failures."""

TOOL_DETECTORS: tuple[Detector, ...] = (tool_rules.detect_tools_called, tool_rules.detect_arguments)
"""The detectors for the description of a tool."""

ROUTER_DETECTORS: tuple[Detector, ...] = (
    label_rules.detect_enumeration,
    label_rules.detect_label_cues,
    label_rules.detect_value_only,
)
"""The detectors for a step that chose a wrong route: what it should answer, and when."""

FIELD_DETECTORS: tuple[Detector, ...] = (
    field_rules.detect_source,
    label_rules.detect_enumeration,
    label_rules.detect_label_cues,
    value_rules.detect_date_format,
    value_rules.detect_decimals,
    label_rules.detect_language,
    label_rules.detect_upper_case,
    field_rules.detect_verbatim,
)
"""The detectors for the description of an output field."""

VALUE_FORMS = frozenset(("date_format", "decimals", "whole_numbers", "json_only"))
"""How something is written. If an output lacks the thing itself, the rule is still asked for along with it."""

NEEDED_SHARE = 0.8
"""The share of references, and of passing outputs, that must agree."""

SLIP_SHARE = 0.15
"""A rule that a smaller share of outputs break is in the prompt already: models slip now and then."""

EXPLAINED_SHARE = 0.25
ENOUGH_EXAMPLES = 3
"""This many passing outputs show what is wanted where references are missing, and that a single failure is a slip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """A predicate with its evidence: the failing cases that it explains, and counts.

    `unseen` are the cases that want it and whose output has nothing to test it on.
    """

    predicate: Predicate
    explained: tuple[str, ...]
    unseen: tuple[str, ...]
    failing: int
    held: int

    @property
    def reason(self) -> str:
        """`17 of 18 failing outputs lack the order id of their input; 6 passing outputs have it`"""
        fault = self.predicate.fault
        if not self.explained:
            return f"the references of {len(self.unseen)} of {self.failing} failing cases never {fault}"
        text = f"{len(self.explained)} of {self.failing} failing outputs {fault}"
        return f"{text}; {self.held} passing outputs {self.predicate.virtue}" if self.held else text


def find_qualified(evidence: SampleSet) -> list[Support]:
    """The predicates that explain failures, most explained first."""
    found = [support for predicate in _detect(evidence) if (support := _weigh(predicate, evidence)) is not None]
    return sorted(found, key=lambda support: -len(support.explained))


def count_needed_cases(failing: int) -> int:
    """How many of the failing cases a rule has to explain."""
    return max(1, min(failing, max(2, math.ceil(EXPLAINED_SHARE * failing))))


def _detect(evidence: SampleSet) -> list[Predicate]:
    detectors = DETECTORS
    if evidence.tool:
        detectors = TOOL_DETECTORS
    elif evidence.field:
        detectors = FIELD_DETECTORS
    elif evidence.is_of_router:
        detectors = ROUTER_DETECTORS
    found: dict[tuple[str, tuple[str, ...]], Predicate] = {}
    for detect in detectors:
        for predicate in detect(evidence):
            found.setdefault((predicate.family, predicate.parameters), predicate)
    return list(found.values())


def _weigh(predicate: Predicate, evidence: SampleSet) -> Support | None:
    """The evidence for a predicate; None if it is too weak."""
    wishes = [_read_wish(predicate, sample, evidence) for sample in evidence.samples]
    if not _mostly_agree(wishes, NEEDED_SHARE):
        return None
    wanting = [sample for sample, wish in zip(evidence.samples, wishes, strict=True) if wish]
    good = [predicate.has(sample) for sample in wanting if sample.passed]
    if not _mostly_agree(good, NEEDED_SHARE) and any(verdict is not None for verdict in good):
        return None
    failing = [(sample, predicate.has(sample)) for sample in wanting if not sample.passed]
    explained = tuple(dict.fromkeys(sample.case_id for sample, verdict in failing if verdict is False))
    undecided = (sample for sample, verdict in failing if verdict is None)
    unseen = tuple(dict.fromkeys(sample.case_id for sample in undecided if _is_unseen(predicate, sample)))
    count = len({sample.case_id for sample in evidence.failing})
    support = Support(predicate=predicate, explained=explained, unseen=unseen, failing=count, held=sum(map(bool, good)))
    if not _is_enough(support, held_by_failing=sum(verdict is True for _, verdict in failing)):
        return None
    return None if _are_slips(support, wanting) else support


def _read_wish(predicate: Predicate, sample: Sample, evidence: SampleSet) -> Verdict:
    """Whether a sample wants the predicate. Without a reference, passing outputs show what is wanted."""
    wish = predicate.wants(sample)
    if wish is not None or sample.passed or sample.reference is not None or predicate.is_conditional:
        return wish
    if predicate.family in _OF_THE_CASE:
        return None
    shown = [predicate.wants(other) for other in evidence.passing]
    return True if shown.count(True) >= ENOUGH_EXAMPLES else None


_OF_THE_CASE = frozenset(
    (
        *("field_carried", "all_fields_carried", "rubric"),
        *("call_tool", "use_tool", "no_tool", "tool_order", "argument_source"),
    )
)
"""Families that depend on the case rather than on a reference of the step."""


def _mostly_agree(verdicts: Iterable[Verdict], share: float) -> bool:
    known = [verdict for verdict in verdicts if verdict is not None]
    return bool(known) and sum(known) >= share * len(known)


def _is_enough(support: Support, *, held_by_failing: int) -> bool:
    """Whether it explains enough failing outputs, and no more of them follow it than break it."""
    explained = len(support.explained)
    if support.unseen and explained >= held_by_failing:
        return True
    needed = (
        max(1, min(2, support.failing)) if support.predicate.is_conditional else count_needed_cases(support.failing)
    )
    return explained >= max(needed, held_by_failing)


def _are_slips(support: Support, wanting: Sequence[Sample]) -> bool:
    """Whether nearly all outputs follow the rule already: then the prompt has it already.

    A rule of a metric, or for some inputs only, may concern few outputs.
    """
    predicate = support.predicate
    if predicate.is_conditional or predicate.is_of_metric:
        return False
    obeying = sum(sample.passed and predicate.has(sample) is True for sample in wanting)
    explained = len(support.explained)
    is_rare = explained < SLIP_SHARE * (explained + obeying)
    return bool(explained) and (is_rare or (explained == 1 and obeying >= ENOUGH_EXAMPLES))


def _is_unseen(predicate: Predicate, sample: Sample) -> bool:
    """Whether the output would need the rule if it had what the rule is about."""
    return predicate.family in VALUE_FORMS and sample.reference is not None
