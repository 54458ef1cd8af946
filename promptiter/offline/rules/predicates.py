"""Which predicates explain why a step fails: found by detectors, tested on all evidence, ranked.

A predicate qualifies when the references want it, failing outputs lack it, passing ones have it, and the same rule,
found without a held-out share of the cases, holds on that share.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from promptiter.offline.rules import (
    answer_rules,
    case_and_language_rules,
    citation_rules,
    field_rules,
    phrase_rules,
    structure_rules,
    tool_rules,
    value_rules,
)
from promptiter.offline.rules.examples import Detector, Evidence, Predicate, Sample, Verdict

DETECTORS: tuple[Detector, ...] = (
    tool_rules.tool_order,
    tool_rules.tool_called,
    tool_rules.tool_avoided,
    tool_rules.arguments,
    phrase_rules.rubric,
    answer_rules.yes_no,
    answer_rules.field_only,
    answer_rules.enumeration,
    answer_rules.label_cues,
    answer_rules.value_only,
    answer_rules.unknown,
    structure_rules.json_keys,
    structure_rules.json_only,
    structure_rules.list_shape,
    structure_rules.items,
    field_rules.fields_carried,
    field_rules.question_carried,
    citation_rules.citation,
    citation_rules.quotation,
    citation_rules.calculation_shown,
    value_rules.date_format,
    value_rules.decimals,
    value_rules.thousands,
    value_rules.currency,
    value_rules.unit,
    case_and_language_rules.language,
    case_and_language_rules.letter_case,
    phrase_rules.prefix,
    phrase_rules.suffix,
    structure_rules.json_object,
    field_rules.all_fields_carried,
    field_rules.verbatim,
    phrase_rules.max_length,
    citation_rules.calculation,
    phrase_rules.keywords,
    phrase_rules.min_length,
    phrase_rules.forbidden,
)
"""In the order in which predicates that explain equally much are preferred."""

TOOL_DETECTORS: tuple[Detector, ...] = (tool_rules.tool_called, tool_rules.arguments)
"""Those for the description of a tool."""

VALUE_FORMS = frozenset(("date_format", "decimals", "whole_numbers", "thousands", "currency", "json_only"))
"""How something is to be written once it is there. Where an output lacks the thing, the rule comes along with it."""

NEEDED_SHARE = 0.8
"""Of the references, and of the passing outputs, so many have to agree."""

SLIP_SHARE = 0.15
"""A rule that fewer outputs break is known already: models slip now and then."""

FOLD_SHARE = 0.75
EXPLAINED_SHARE = 0.25
HELD_OUT_FROM = 4
"""With fewer failing examples no share of them can be held out."""

FOLDS = 3
"""A third of the cases is held out, each third once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """A predicate with what speaks for it: case ids of failing outputs that it explains, and counts.

    `unseen` are the cases in which it is wanted and the output has nothing to test it on.
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


def qualified(evidence: Evidence) -> list[Support]:
    """The predicates that explain failures, most explained first."""
    found = [support for predicate in _detected(evidence) if (support := _support(predicate, evidence)) is not None]
    return sorted(_confirmed(found, evidence), key=lambda support: -len(support.explained))


def enough_cases(failing: int) -> int:
    """How many of so many failing cases a rule has to explain."""
    return max(1, min(failing, max(2, math.ceil(EXPLAINED_SHARE * failing))))


def _detected(evidence: Evidence) -> list[Predicate]:
    detectors = TOOL_DETECTORS if evidence.tool else DETECTORS
    found: dict[tuple[str, tuple[str, ...]], Predicate] = {}
    for detect in detectors:
        for predicate in detect(evidence):
            found.setdefault((predicate.family, predicate.parameters), predicate)
    return list(found.values())


def _support(predicate: Predicate, evidence: Evidence) -> Support | None:
    """What speaks for a predicate; None if too much speaks against it."""
    wishes = [_wish(predicate, sample, evidence) for sample in evidence.samples]
    if not _most(wishes, NEEDED_SHARE):
        return None
    wanting = [sample for sample, wish in zip(evidence.samples, wishes, strict=True) if wish]
    good = [predicate.has(sample) for sample in wanting if sample.passed]
    if not _most(good, NEEDED_SHARE) and any(verdict is not None for verdict in good):
        return None
    failing = [(sample, predicate.has(sample)) for sample in wanting if not sample.passed]
    explained = tuple(dict.fromkeys(sample.case_id for sample, verdict in failing if verdict is False))
    untold = (sample for sample, verdict in failing if verdict is None)
    unseen = tuple(dict.fromkeys(sample.case_id for sample in untold if _is_unseen(predicate, sample)))
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
        *("field_carried", "all_fields_carried", "call_tool", "use_tool", "no_tool", "tool_order"),
        *("argument_source", "argument_domain", "argument_date", "rubric"),
    )
)
"""Families that need no reference of the step itself: where their samples are silent, so are they."""


def _most(verdicts: Iterable[Verdict], share: float) -> bool:
    told = [verdict for verdict in verdicts if verdict is not None]
    return bool(told) and sum(told) >= share * len(told)


def _is_enough(support: Support, *, held_by_failing: int) -> bool:
    """Whether it explains enough failing outputs, and not only some of those that it could."""
    explained = len(support.explained)
    if support.unseen and explained >= held_by_failing:
        return True
    needed = max(1, min(2, support.failing)) if support.predicate.is_conditional else enough_cases(support.failing)
    return explained >= max(needed, held_by_failing)


def _are_slips(support: Support, wanting: Sequence[Sample]) -> bool:
    """Whether nearly all outputs obey already, though not by accident: then the text says it, and to say more is idle.

    A metric that finds fault, or a rule for some inputs only, may well concern few outputs.
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
    """Whether the output, had it what the rule is about, would need the rule. A number is copied as it stands."""
    if predicate.family not in VALUE_FORMS or sample.reference is None:
        return False
    return predicate.family == "date_format" or not _is_copied(predicate, sample)


def _is_copied(predicate: Predicate, sample: Sample) -> bool:
    """Whether the input is written as the rule wants it, so that copying is enough to obey."""
    return predicate.family in VALUE_FORMS and predicate.has(replace(sample, output=sample.input)) is True


def _confirmed(found: Sequence[Support], evidence: Evidence) -> list[Support]:
    """Those whose rule, found without some held-out cases, holds on them, for most ways to hold some out.

    Of few failing cases none is held out.
    """
    if len({sample.case_id for sample in evidence.failing}) < HELD_OUT_FROM:
        return list(found)
    votes: Counter[tuple[str, str]] = Counter()
    count = 0
    for fold in range(FOLDS):
        kept, held_out = _parted(evidence, fold)
        if held_out.failing and len({sample.case_id for sample in kept.failing}) > 1:
            count += 1
            votes.update({(each.family, each.subject) for each in _detected(kept) if _holds_on(each, held_out, kept)})
    return [each for each in found if 2 * votes[each.predicate.family, each.predicate.subject] >= count]


def _holds_on(predicate: Predicate, held_out: Evidence, kept: Evidence) -> bool:
    wishes = [(sample, _wish(predicate, sample, kept)) for sample in held_out.samples]
    told = [wish for _, wish in wishes if wish is not None]
    good = [predicate.has(sample) for sample, wish in wishes if wish and sample.passed]
    is_wanted = not told or _most(told, FOLD_SHARE)
    return is_wanted and (all(verdict is None for verdict in good) or _most(good, FOLD_SHARE))


def _parted(evidence: Evidence, fold: int) -> tuple[Evidence, Evidence]:
    """The cases without a fold of them, and that fold. What three cases share, two of them share in a part of all."""

    def side(samples: Sequence[Sample], *, is_held_out: bool) -> tuple[Sample, ...]:
        return tuple(sample for sample in samples if (fold_of(sample.case_id) == fold) == is_held_out)

    kept, held_out = (
        replace(
            evidence,
            failing=side(evidence.failing, is_held_out=is_held_out),
            passing=side(evidence.passing, is_held_out=is_held_out),
            fewest=2,
        )
        for is_held_out in (False, True)
    )
    return kept, held_out


def fold_of(case_id: str) -> int:
    """The fold of a case, by a hash of its id: it never changes, whatever the other cases are."""
    return int.from_bytes(hashlib.sha256(case_id.encode()).digest()[:4]) % FOLDS
