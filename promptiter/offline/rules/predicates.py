"""The predicates that explain why a step fails: found by detectors, tested on all evidence, ranked.

A predicate qualifies if the references want it, failing outputs lack it, passing ones have it, and the same rule,
found without a held-out share of the cases, is confirmed by that share.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from promptiter.offline.rules import (
    field_rules,
    label_rules,
    phrase_rules,
    structure_rules,
    tool_rules,
    value_rules,
)
from promptiter.offline.rules.examples import Detector, Evidence, Predicate, Sample, Verdict

DETECTORS: tuple[Detector, ...] = (
    tool_rules.detect_tool_order,
    tool_rules.detect_tools_called,
    tool_rules.detect_tools_avoided,
    tool_rules.detect_arguments,
    phrase_rules.detect_rubrics,
    label_rules.detect_enumeration,
    label_rules.detect_label_cues,
    label_rules.detect_value_only,
    structure_rules.detect_json_keys,
    structure_rules.detect_json_only,
    field_rules.detect_fields_carried,
    field_rules.detect_question_carried,
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
    phrase_rules.detect_max_length,
    phrase_rules.detect_keywords,
    phrase_rules.detect_min_length,
)
"""In order of preference among predicates that explain equally many failures."""

TOOL_DETECTORS: tuple[Detector, ...] = (tool_rules.detect_tools_called, tool_rules.detect_arguments)
"""The detectors for the description of a tool."""

VALUE_FORMS = frozenset(("date_format", "decimals", "whole_numbers", "json_only"))
"""How something is written. If an output lacks the thing itself, the rule is still asked for along with it."""

NEEDED_SHARE = 0.8
"""The share of references, and of passing outputs, that must agree."""

SLIP_SHARE = 0.15
"""A rule that a smaller share of outputs break is in the prompt already: models slip now and then."""

FOLD_SHARE = 0.75
EXPLAINED_SHARE = 0.25
HELD_OUT_FROM = 4
"""With fewer failing cases none are held out."""

FOLDS = 3
"""Each third of the cases is held out once."""


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
        """`17 of 18 failing outputs lack the order id that stands in their input; 6 passing outputs have it`"""
        fault = self.predicate.fault
        if not self.explained:
            return f"the references of {len(self.unseen)} of {self.failing} failing cases never {fault}"
        text = f"{len(self.explained)} of {self.failing} failing outputs {fault}"
        return f"{text}; {self.held} passing outputs {self.predicate.virtue}" if self.held else text


def find_qualified(evidence: Evidence) -> list[Support]:
    """The predicates that explain failures, most explained first."""
    found = [support for predicate in _detect(evidence) if (support := _weigh(predicate, evidence)) is not None]
    return sorted(_confirm(found, evidence), key=lambda support: -len(support.explained))


def count_needed_cases(failing: int) -> int:
    """How many of the failing cases a rule has to explain."""
    return max(1, min(failing, max(2, math.ceil(EXPLAINED_SHARE * failing))))


def _detect(evidence: Evidence) -> list[Predicate]:
    detectors = TOOL_DETECTORS if evidence.tool else DETECTORS
    found: dict[tuple[str, tuple[str, ...]], Predicate] = {}
    for detect in detectors:
        for predicate in detect(evidence):
            found.setdefault((predicate.family, predicate.parameters), predicate)
    return list(found.values())


def _weigh(predicate: Predicate, evidence: Evidence) -> Support | None:
    """The evidence for a predicate; None if it is too weak."""
    wishes = [_wish(predicate, sample, evidence) for sample in evidence.samples]
    if not _mostly(wishes, NEEDED_SHARE):
        return None
    wanting = [sample for sample, wish in zip(evidence.samples, wishes, strict=True) if wish]
    good = [predicate.has(sample) for sample in wanting if sample.passed]
    if not _mostly(good, NEEDED_SHARE) and any(verdict is not None for verdict in good):
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


def _wish(predicate: Predicate, sample: Sample, evidence: Evidence) -> Verdict:
    """Whether a sample wants the predicate. Without a reference, passing outputs show what is wanted."""
    wish = predicate.wants(sample)
    if wish is not None or sample.passed or sample.reference is not None or predicate.is_conditional:
        return wish
    if predicate.family in _OF_THE_CASE:
        return None
    shown = [predicate.wants(other) for other in evidence.passing]
    return True if shown.count(True) >= HELD_OUT_FROM - 1 else None


_OF_THE_CASE = frozenset(
    (
        *("field_carried", "all_fields_carried", "rubric"),
        *("call_tool", "use_tool", "no_tool", "tool_order", "argument_source"),
    )
)
"""Families that depend on the case rather than on a reference of the step."""


def _mostly(verdicts: Iterable[Verdict], share: float) -> bool:
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
    """Whether nearly all outputs follow the rule already, though not by accident: then the prompt has it already.

    A rule of a metric, or for some inputs only, may concern few outputs.
    """
    predicate = support.predicate
    if predicate.is_conditional or predicate.is_of_metric:
        return False
    obeying = sum(
        sample.passed and predicate.has(sample) is True and not _is_copied(predicate, sample) for sample in wanting
    )
    explained = len(support.explained)
    is_rare = explained < SLIP_SHARE * (explained + obeying)
    return bool(explained) and (is_rare or (explained == 1 and obeying >= HELD_OUT_FROM - 1))


def _is_unseen(predicate: Predicate, sample: Sample) -> bool:
    """Whether the output would need the rule if it had what the rule is about. Numbers are copied as they are."""
    if predicate.family not in VALUE_FORMS or sample.reference is None:
        return False
    return predicate.family == "date_format" or not _is_copied(predicate, sample)


def _is_copied(predicate: Predicate, sample: Sample) -> bool:
    """Whether the input follows the rule, so that copying is enough."""
    return predicate.family in VALUE_FORMS and predicate.has(replace(sample, output=sample.input)) is True


def _confirm(found: Sequence[Support], evidence: Evidence) -> list[Support]:
    """Those that are found again without the held-out cases and hold on these, for most folds.

    With few failing cases none are held out.
    """
    if len({sample.case_id for sample in evidence.failing}) < HELD_OUT_FROM:
        return list(found)
    votes: Counter[tuple[str, str]] = Counter()
    count = 0
    for fold in range(FOLDS):
        kept, held_out = _split(evidence, fold)
        if held_out.failing and len({sample.case_id for sample in kept.failing}) > 1:
            count += 1
            votes.update({(each.family, each.subject) for each in _detect(kept) if _holds_on(each, held_out, kept)})
    return [each for each in found if 2 * votes[each.predicate.family, each.predicate.subject] >= count]


def _holds_on(predicate: Predicate, held_out: Evidence, kept: Evidence) -> bool:
    wishes = [(sample, _wish(predicate, sample, kept)) for sample in held_out.samples]
    known = [wish for _, wish in wishes if wish is not None]
    good = [predicate.has(sample) for sample, wish in wishes if wish and sample.passed]
    is_wanted = not known or _mostly(known, FOLD_SHARE)
    return is_wanted and (all(verdict is None for verdict in good) or _mostly(good, FOLD_SHARE))


def _split(evidence: Evidence, fold: int) -> tuple[Evidence, Evidence]:
    """The cases outside a fold, and those in it. In a part of the cases, two that share a literal are enough."""

    def side(samples: Sequence[Sample], *, is_held_out: bool) -> tuple[Sample, ...]:
        return tuple(sample for sample in samples if (assign_fold(sample.case_id) == fold) == is_held_out)

    kept, held_out = (
        replace(
            evidence,
            failing=side(evidence.failing, is_held_out=is_held_out),
            passing=side(evidence.passing, is_held_out=is_held_out),
            min_cases=2,
        )
        for is_held_out in (False, True)
    )
    return kept, held_out


def assign_fold(case_id: str) -> int:
    """The fold of a case, by a hash of its id: it does not depend on the other cases."""
    return int.from_bytes(hashlib.sha256(case_id.encode()).digest()[:4]) % FOLDS
