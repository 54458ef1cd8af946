"""Predicates about the shape of an output: a JSON object, its keys, nothing around it; lists and their length."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from promptiter.offline.rules.examples import (
    Evidence,
    Predicate,
    Sample,
    Verdict,
    is_safe_literal,
    text_predicate,
)

MOST_KEYS = 20
MOST_SHARE = 0.9

_BULLET = re.compile(r"[-*•–]\s+\S")
_COMMA = re.compile(r",(?!\d{3}(?!\d))")
_NUMBERED = re.compile(r"\d{1,3}[.)]\s+\S")


def json_object(evidence: Evidence) -> Iterator[Predicate]:
    """The output is a JSON object, as the references or the metric want it."""
    wants = [_wants_json(sample) for sample in evidence.samples]
    if wants.count(True) == 0:
        return
    yield Predicate(
        family="json_object",
        wants=_wants_json,
        has=lambda sample: json_keys_of(sample.output) is not None,
        fault="are no JSON object",
        virtue="are one",
    )


def json_keys(evidence: Evidence) -> Iterator[Predicate]:
    """The output is a JSON object with the keys that the references share, or that the metric's schema requires."""
    required = _required_keys(evidence)
    keys = required or _shared_keys(evidence)
    if not keys or not all(map(is_safe_literal, keys)):
        return
    by_case = [json_keys_of(text) for _, text in evidence.referenced]
    is_all = not required and all(len(found) == len(keys) for found in by_case if found is not None)
    test = partial(_has_keys, keys=keys, is_ordered=evidence.is_whole and is_all, is_all=is_all)
    spoken = ", ".join(keys)
    predicate = text_predicate(
        "json_keys", keys, test=test, fault=f"are no JSON object with the keys {spoken}", virtue="are one"
    )
    if not required:
        yield predicate
        return
    yield Predicate(
        family="json_keys",
        parameters=keys,
        wants=lambda sample: True if not sample.passed else None,
        has=predicate.has,
        fault=predicate.fault,
        virtue=predicate.virtue,
    )


def json_only(evidence: Evidence) -> Iterator[Predicate]:
    """There is nothing around the JSON: no prose, and no code fence where the whole text counts."""
    if evidence.compared in ("part", "number"):
        return
    yield text_predicate(
        "json_only",
        test=lambda text, sample: _is_bare_json(text, may_be_fenced=sample.compared == "json"),
        fault="have text or a code fence around the JSON",
    )


def list_shape(evidence: Evidence) -> Iterator[Predicate]:
    """The output is a list: bullets, numbers, or values between commas."""
    if not evidence.is_whole:
        return
    counts = Counter(shape for _, text in evidence.referenced if (shape := shape_of(text)))
    if not counts:
        return
    best = min(counts, key=lambda shape: (-counts[shape], shape))
    yield text_predicate(
        best,
        test=lambda text, _: shape_of(text) == best,
        fault=f"are no list of this kind: {best.replace('_', ' ')}",
        virtue="are one",
    )


def items(evidence: Evidence) -> Iterator[Predicate]:
    """The list has as many items as that of each reference."""
    if not evidence.is_whole:
        return
    counts = Counter((len(items_of(text)), shape_of(text)) for _, text in evidence.referenced)
    (count, shape), cases = min(counts.items(), key=lambda each: (-each[1], str(each[0])), default=((0, ""), 0))
    if count < 2 or cases < evidence.fewest or not shape:
        return
    yield text_predicate(
        "items",
        (str(count), "bullet points" if shape == "bullets" else "items"),
        test=lambda text, _: len(items_of(text)) == count,
        fault=f"do not have exactly {count} items",
        virtue="have them",
    )


def json_keys_of(text: str) -> tuple[str, ...] | None:
    """The keys of the JSON object that a text is, also inside a code fence; None if it is none."""
    try:
        value = parse_json(text)
    except NotJsonError:
        return None
    return tuple(value) if isinstance(value, dict) else None


def shape_of(text: str) -> str:
    """`bullets`, `numbered`, `comma_separated`, or nothing of the kind."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and all(map(_BULLET.match, lines)):
        return "bullets"
    if lines and all(map(_NUMBERED.match, lines)):
        return "numbered"
    parts = [part.strip() for part in _COMMA.split(text)]
    is_short = all(part and len(part.split()) <= (4 if len(parts) == 2 else 8) for part in parts)
    is_plain = len(lines) == 1 and not re.search(r"[{}\[\]:!?]|\w\.\s|\.$", text)
    return "comma_separated" if len(parts) > 1 and is_short and is_plain else ""


def items_of(text: str) -> list[str]:
    """The items of a list; of any other text none."""
    shape = shape_of(text)
    if not shape:
        return []
    return _COMMA.split(text) if shape == "comma_separated" else [line for line in text.splitlines() if line.strip()]


def _wants_json(sample: Sample) -> Verdict:
    if any(finding.predicate in ("valid_json", "json_schema") for finding in sample.findings):
        return True
    if sample.reference is None:
        return None
    wanted = json_keys_of(sample.reference) is not None
    return None if not wanted and sample.compared == "part" else wanted


def _has_keys(text: str, _: Sample, *, keys: tuple[str, ...], is_ordered: bool, is_all: bool) -> Verdict:
    found = json_keys_of(text)
    if found is None:
        return False
    if is_ordered:
        return found == keys
    return set(found) == set(keys) if is_all else set(found) >= set(keys)


def _shared_keys(evidence: Evidence) -> tuple[str, ...]:
    """The keys that nearly all references have, in their most frequent order."""
    orders = [found for _, text in evidence.referenced if (found := json_keys_of(text))]
    cases = {sample.case_id for sample, text in evidence.referenced if json_keys_of(text)}
    counts = Counter(key for order in orders for key in order)
    shared = {key for key, count in counts.items() if count >= MOST_SHARE * len(orders)}
    if len(cases) < evidence.fewest or len(shared) > MOST_KEYS:
        return ()
    common = Counter(tuple(key for key in order if key in shared) for order in orders)
    return min(common, key=lambda order: (-common[order], order), default=())


def _required_keys(evidence: Evidence) -> tuple[str, ...]:
    """The keys that a JSON schema requires, as its findings tell."""
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
    if may_be_fenced and json_keys_of(bare) is not None:
        return True
    opening = re.search(r"\{\s*[\"}]", bare)
    if opening is None:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(bare, opening.start())
    except (ValueError, RecursionError):
        return None
    return opening.start() == 0 and end == len(bare)
