"""Fault localization by comparing runs: which node does not show in failing runs what it introduces in passing ones.

A value that no step of a failing run ever had cannot be followed back. Values like it can be looked for in other runs:
an ISO date, an id such as `A-17`, JSON, one of some labels. For each node, Ochiai's coefficient (spectrum-based fault
localization; Abreu, Zoeteweij and van Gemund 2007) weighs in how many failing and passing runs it did not show one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from promptiter.backprop.step_text import snapshot_text
from promptiter.offline.attribution.value_search import Value
from promptiter.offline.text.matching import normalize, read_document
from promptiter.stages.contracts import Peer
from traces import ExecutionTrace

MAX_PEERS = 24
"""Maximum number of passing peers, and of failing peers, that are compared."""


@dataclass(frozen=True, slots=True)
class TextPattern:
    """A class of texts. `name` describes what a text that matches shows; patterns of one name are the same."""

    name: str
    matches: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A node that matches a pattern in passing runs and not in failing ones; `score` is from 0 to 1."""

    node_id: str
    score: float


def ochiai(*, failing: int, passing: int, all_failing: int) -> float:
    """The coefficient of a trait that `failing` of `all_failing` failing runs and `passing` passing runs have."""
    both = all_failing * (failing + passing)
    return failing / math.sqrt(both) if both else 0.0


def find_most_suspicious(pattern: TextPattern, trace: ExecutionTrace, *, peers: Sequence[Peer]) -> Suspicion | None:
    """The most suspicious node among those that introduce the pattern in passing peers; the first of equals.

    The trait of a node is that it ran without matching. Nodes that only pass the pattern on in passing peers are not
    considered.
    """
    passing = [compute_spectrum(pattern, peer.trace) for peer in peers if peer.passed][:MAX_PEERS]
    if not passing:
        return None
    here = compute_spectrum(pattern, trace)
    introducing = {node_id for run in passing for node_id in run.introducing}
    suspects = [node_id for node_id in here.nodes if node_id in introducing and node_id not in here.matching]
    if not suspects:
        return None
    failing = [here, *(compute_spectrum(pattern, peer.trace) for peer in peers if not peer.passed)][: MAX_PEERS + 1]
    scored = [
        Suspicion(
            node_id,
            ochiai(
                failing=sum(run.ran_without_match(node_id) for run in failing),
                passing=sum(run.ran_without_match(node_id) for run in passing),
                all_failing=len(failing),
            ),
        )
        for node_id in suspects
    ]
    return max(scored, key=lambda suspicion: suspicion.score)  # the first of equals


def find_matching_nodes(pattern: TextPattern, peers: Sequence[Peer]) -> frozenset[str]:
    """The nodes whose outputs match the pattern in some passing peer."""
    passing = [peer for peer in peers if peer.passed][:MAX_PEERS]
    return frozenset(node_id for peer in passing for node_id in compute_spectrum(pattern, peer.trace).matching)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The nodes of one run in order, those whose output matches a pattern, and those that introduce it."""

    nodes: tuple[str, ...]
    matching: frozenset[str]
    introducing: frozenset[str]

    def ran_without_match(self, node_id: str) -> bool:
        return node_id in self.nodes and node_id not in self.matching


def compute_spectrum(pattern: TextPattern, trace: ExecutionTrace) -> Spectrum:
    """Which nodes of a run match. A node that read or was given the pattern does not introduce it."""
    matching_steps = {step.id for step in trace.steps if pattern.matches(snapshot_text(step.output))}
    nodes: dict[str, None] = {}
    matching: set[str] = set()
    introducing: set[str] = set()
    for step in trace.steps:
        nodes.setdefault(step.node_id)
        if step.id not in matching_steps:
            continue
        matching.add(step.node_id)
        if matching_steps.isdisjoint(step.sources) and not pattern.matches(snapshot_text(step.input)):
            introducing.add(step.node_id)
    return Spectrum(tuple(nodes), frozenset(matching), frozenset(introducing))


def generalize_value(value: Value, *, labels: Collection[str] = ()) -> TextPattern | None:
    """The pattern of values written like this one; `labels` are the alternatives to it. None for plain words."""
    if labels:
        return regex_pattern(
            f"one of {', '.join(sorted(labels))}", rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(labels)))})(?!\w)"
        )
    match value.kind:
        case "date" if re.fullmatch(_ISO, value.text):
            return regex_pattern("an ISO date", rf"(?<!\d){_ISO}(?!\d)")
        case "date":
            return regex_pattern(f"a date like {value.text!r}", rf"(?<!\d){_generalize_text(value.text)}(?!\d)")
        case "number" if "." in value.text:
            decimals = len(value.text.partition(".")[2])
            return regex_pattern(
                f"a number with {decimals} decimals", rf"(?<![\d.]){_INTEGER}\.\d{{{decimals}}}(?!\d|\.\d)"
            )
        case "number":
            return regex_pattern("a whole number", rf"(?<![\w.-]){_INTEGER}(?!\w|[.-]\w)")
        case "id":
            return regex_pattern(f"an id like {value.text!r}", rf"(?<!\w){_generalize_text(value.text)}(?!\w|-\w)")
        case "address":
            return regex_pattern(
                "an address", r"[\w.+-]+@[\w-]+\.\w|https?://\w" if "@" in value.text else r"https?://\w"
            )
        case _:
            return None


def regex_pattern(name: str, regex: str) -> TextPattern:
    """The texts in which a regular expression is found."""
    compiled = re.compile(regex, re.IGNORECASE)
    return TextPattern(name, lambda text: compiled.search(text) is not None)


def json_pattern() -> TextPattern:
    """The texts that are JSON, or have some in a code fence."""
    return TextPattern("JSON", lambda text: read_document(text) is not None)


def prefix_pattern(prefix: str) -> TextPattern:
    return TextPattern(f"the prefix {prefix!r}", lambda text: normalize(text).startswith(normalize(prefix)))


def suffix_pattern(suffix: str) -> TextPattern:
    return TextPattern(f"the suffix {suffix!r}", lambda text: normalize(text).endswith(normalize(suffix)))


def length_pattern(*, at_least: int = 0, at_most: int | None = None) -> TextPattern:
    """The texts of some length in characters; an empty text never matches."""
    limit = math.inf if at_most is None else at_most
    return TextPattern("a text of that length", lambda text: max(at_least, 1) <= len(text) <= limit)


_ISO = r"\d{4}-\d{2}-\d{2}"
_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d+)"


def _generalize_text(text: str) -> str:
    """A pattern with any letters where the text has letters and any digits where it has digits."""
    runs = re.finditer(r"(?P<letters>[^\W\d_]+)|(?P<digits>\d+)|(?P<space>\s+)|(?P<other>.)", text)
    by_kind = {"letters": r"[^\W\d_]+", "digits": r"\d+", "space": r"\s+"}
    return "".join(by_kind.get(run.lastgroup or "", "") or re.escape(run[0]) for run in runs)
