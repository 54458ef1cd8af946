"""Predicates about JSON: the output is an object, it has certain keys, and there is nothing around it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from promptiter.offline.rules.examples import (
    MIN_SHARE,
    Predicate,
    Sample,
    SampleSet,
    Verdict,
    is_safe_literal,
    text_predicate,
)
from promptiter.offline.text.matching import read_object

MAX_KEYS = 20


def detect_json_object(evidence: SampleSet) -> Iterator[Predicate]:
    """The output is a JSON object, as the references or the metric want it."""
    if any(map(_wants_json, evidence.samples)):
        yield Predicate(
            family="json_object",
            wants=_wants_json,
            has=lambda sample: read_object(sample.output) is not None,
            fault="are not a JSON object",
            virtue="are one",
        )


def detect_json_keys(evidence: SampleSet) -> Iterator[Predicate]:
    """The output is a JSON object with the keys that the references share, or that the metric's schema requires."""
    required = _find_required_keys(evidence)
    keys = required or _find_shared_keys(evidence)
    if not keys or not all(map(is_safe_literal, keys)):
        return
    by_case = [read_object(text) for _, text in evidence.referenced]
    is_all = not required and all(len(found) == len(keys) for found in by_case if found is not None)
    test = partial(_has_keys, keys=keys, is_ordered=evidence.is_whole and is_all, is_all=is_all)
    fault = f"are not a JSON object with the keys {', '.join(keys)}"
    predicate = text_predicate("json_keys", keys, test=test, fault=fault, virtue="are one")
    yield replace(predicate, wants=lambda sample: None if sample.passed else True) if required else predicate


def detect_json_only(evidence: SampleSet) -> Iterator[Predicate]:
    """There is nothing around the JSON: no prose, and no code fence where the whole text counts."""
    if evidence.compared not in ("part", "number"):
        yield text_predicate(
            "json_only",
            test=lambda text, sample: _is_bare_json(text, may_be_fenced=sample.compared == "json"),
            fault="have text or a code fence around the JSON",
        )


def _wants_json(sample: Sample) -> Verdict:
    if any(finding.predicate in ("valid_json", "json_schema") for finding in sample.findings):
        return True
    if sample.reference is None:
        return None
    is_wanted = read_object(sample.reference) is not None
    return None if not is_wanted and sample.compared == "part" else is_wanted


def _has_keys(text: str, _: Sample, *, keys: tuple[str, ...], is_ordered: bool, is_all: bool) -> Verdict:
    found = read_object(text)
    if found is None:
        return False
    if is_ordered:
        return tuple(found) == keys
    return set(found) == set(keys) if is_all else set(found) >= set(keys)


def _find_shared_keys(evidence: SampleSet) -> tuple[str, ...]:
    """The keys that nearly all references have, in their most frequent order."""
    orders = [tuple(found) for _, text in evidence.referenced if (found := read_object(text))]
    counts = Counter(key for order in orders for key in order)
    shared = {key for key, count in counts.items() if count >= MIN_SHARE * len(orders)}
    if len(orders) < evidence.min_cases or len(shared) > MAX_KEYS:
        return ()
    common = Counter(tuple(key for key in order if key in shared) for order in orders)
    return min(common, key=lambda order: (-common[order], order), default=())


def _find_required_keys(evidence: SampleSet) -> tuple[str, ...]:
    """The keys that a JSON schema requires, from the findings about it."""
    wishes = Counter(
        tuple(map(str, finding.expected["required"]))
        for sample in evidence.failing
        for finding in sample.findings
        if finding.predicate == "json_schema" and isinstance(finding.expected, dict) and "required" in finding.expected
    )
    return min(wishes, key=lambda keys: (-wishes[keys], keys), default=())


def _is_bare_json(text: str, *, may_be_fenced: bool) -> Verdict:
    """None if there is no JSON object in the text at all."""
    bare = text.strip()
    if may_be_fenced and read_object(bare) is not None:
        return True
    opening = re.search(r"\{\s*[\"}]", bare)
    if opening is None:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(bare, opening.start())
    except (ValueError, RecursionError):
        return None
    return opening.start() == 0 and end == len(bare)
