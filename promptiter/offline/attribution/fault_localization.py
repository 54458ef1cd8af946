"""Suspicion from comparison: which node does not show, in failing runs, what it first shows in passing ones.

A value that no step of a failing run ever had cannot be followed back. Its shape can be looked for in other runs: an
ISO date, an id such as `A-17`, JSON, one of some labels. For each node, Ochiai's coefficient (fault localization by
spectra; Abreu, Zoeteweij and van Gemund 2007) weighs in how many failing and passing runs it did not show the shape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from promptiter.offline.attribution.value_search import Value, snapshot_text
from promptiter.stages.contracts import Peer
from traces import ExecutionTrace

MOST_PEERS = 24
"""So many passing and so many failing peers are looked at."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A class of texts: `name` says in words what a text of it shows; shapes of one name are the same."""

    name: str
    shows: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A node that shows a shape in passing runs and not in failing ones; `score` is from 0 to 1."""

    node_id: str
    score: float


def ochiai(*, failing: int, passing: int, all_failing: int) -> float:
    """Of a mark that `failing` of `all_failing` failing runs and `passing` passing runs bear."""
    both = all_failing * (failing + passing)
    return failing / math.sqrt(both) if both else 0.0


def most_suspicious(shape: Shape, trace: ExecutionTrace, *, peers: Sequence[Peer]) -> Suspicion | None:
    """The node that first shows the shape in passing peers and should have here: the most suspicious, then the first.

    The mark of a node is that it ran and did not show the shape. Nodes that only hand the shape on, in passing peers,
    are not asked.
    """
    passing = [spectrum(shape, peer.trace) for peer in peers if peer.passed][:MOST_PEERS]
    if not passing:
        return None
    here = spectrum(shape, trace)
    makers = {node_id for run in passing for node_id in run.made}
    suspects = [node_id for node_id in here.ran if node_id in makers and node_id not in here.shown]
    if not suspects:
        return None
    failing = [here, *(spectrum(shape, peer.trace) for peer in peers if not peer.passed)][: MOST_PEERS + 1]
    scored = [
        Suspicion(
            node_id,
            ochiai(
                failing=sum(run.lacks(node_id) for run in failing),
                passing=sum(run.lacks(node_id) for run in passing),
                all_failing=len(failing),
            ),
        )
        for node_id in suspects
    ]
    return max(scored, key=lambda suspicion: suspicion.score)  # of equals the first


def nodes_showing(shape: Shape, peers: Sequence[Peer]) -> frozenset[str]:
    """The nodes whose outputs show the shape in some passing peer."""
    passing = [peer for peer in peers if peer.passed][:MOST_PEERS]
    return frozenset(node_id for peer in passing for node_id in spectrum(shape, peer.trace).shown)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Of one run: the nodes that ran, in its order; those that showed a shape; those that showed it first."""

    ran: tuple[str, ...]
    shown: frozenset[str]
    made: frozenset[str]

    def lacks(self, node_id: str) -> bool:
        return node_id in self.ran and node_id not in self.shown


def spectrum(shape: Shape, trace: ExecutionTrace) -> Spectrum:
    """Which nodes of a run show a shape. One that was given it, by a predecessor or in its input, did not make it."""
    showing = {step.id for step in trace.steps if shape.shows(snapshot_text(step.output))}
    ran: dict[str, None] = {}
    shown: set[str] = set()
    made: set[str] = set()
    for step in trace.steps:
        ran.setdefault(step.node_id)
        if step.id not in showing:
            continue
        shown.add(step.node_id)
        if showing.isdisjoint(step.predecessors) and not shape.shows(snapshot_text(step.input)):
            made.add(step.node_id)
    return Spectrum(tuple(ran), frozenset(shown), frozenset(made))


def shape_of(value: Value, *, labels: Collection[str] = ()) -> Shape | None:
    """The class of a value by how it is written; `labels` are what else could stand in its place. None: any words."""
    if labels:
        return pattern_shape(
            f"one of {', '.join(sorted(labels))}", rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(labels)))})(?!\w)"
        )
    match value.kind:
        case "date" if re.fullmatch(_ISO, value.text):
            return pattern_shape("an ISO date", rf"(?<!\d){_ISO}(?!\d)")
        case "date":
            return pattern_shape(f"a date like {value.text!r}", rf"(?<!\d){_generalised(value.text)}(?!\d)")
        case "number" if "." in value.text:
            decimals = len(value.text.partition(".")[2])
            return pattern_shape(
                f"a number with {decimals} decimals", rf"(?<![\d.]){_INTEGER}\.\d{{{decimals}}}(?!\d|\.\d)"
            )
        case "number":
            return pattern_shape("a whole number", rf"(?<![\w.-]){_INTEGER}(?!\w|[.-]\w)")
        case "id":
            return pattern_shape(f"an id like {value.text!r}", rf"(?<!\w){_generalised(value.text)}(?!\w|-\w)")
        case "address":
            return pattern_shape(
                "an address", r"[\w.+-]+@[\w-]+\.\w|https?://\w" if "@" in value.text else r"https?://\w"
            )
        case _:
            return None


def pattern_shape(name: str, pattern: str) -> Shape:
    """The texts in which a regular expression is found."""
    compiled = re.compile(pattern, re.IGNORECASE)
    return Shape(name, lambda text: compiled.search(text) is not None)


def json_shape() -> Shape:
    """The texts that are JSON, or hold some in a code fence."""
    return Shape("JSON", _is_json)


def prefix_shape(prefix: str) -> Shape:
    return Shape(f"the beginning {prefix!r}", lambda text: text.strip().casefold().startswith(prefix.casefold()))


def suffix_shape(suffix: str) -> Shape:
    return Shape(f"the end {suffix!r}", lambda text: text.strip().casefold().endswith(suffix.casefold()))


def length_shape(*, at_least: int = 0, at_most: int | None = None) -> Shape:
    """The texts of some length in characters; an empty text is of none."""
    limit = math.inf if at_most is None else at_most
    return Shape("a text of that length", lambda text: max(at_least, 1) <= len(text) <= limit)


_ISO = r"\d{4}-\d{2}-\d{2}"
_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d+)"


def _generalised(text: str) -> str:
    """The pattern of a text: any letters where it has letters, any digits where it has digits."""
    runs = re.finditer(r"(?P<letters>[^\W\d_]+)|(?P<digits>\d+)|(?P<space>\s+)|(?P<other>.)", text)
    by_kind = {"letters": r"[^\W\d_]+", "digits": r"\d+", "space": r"\s+"}
    return "".join(by_kind.get(run.lastgroup or "", "") or re.escape(run[0]) for run in runs)


def _is_json(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict | list)
    except NotJsonError:
        return False
