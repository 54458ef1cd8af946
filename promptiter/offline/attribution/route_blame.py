"""Blame for a wrong route: on the step whose output sent the run to a branch that is not for its input.

There are two kinds of evidence. An expected tool belongs to nodes that did not run, and another branch leads to one of
them; the structure proves that. Or the input has what the inputs of another branch have in common, and lacks what those
of this branch have in common. Inputs are known to be for a branch if a run that took it passed, or if an expected tool
is in no other branch. If no inputs of the other branch are known, its instructions must name a field of the input that
this branch does not know, or this branch must have made a needless tool call.

What ran after a wrong route is unobserved, not innocent: it gets no blame now.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from promptiter.backprop.step_text import json_leaves, json_text, snapshot_text
from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.blame_results import Blame, BlameCollector
from promptiter.offline.attribution.tool_blame import blame_source_of, describe_call, find_usual_callers
from promptiter.offline.attribution.value_search import normalize_name
from promptiter.offline.rules.label_rules import MAX_LABEL_WORDS, strip_answer
from promptiter.offline.rules.phrase_rules import count_texts_by_word
from promptiter.offline.text.fields import read_fields
from promptiter.offline.text.matching import read_document
from promptiter.stages.contracts import Peer
from promptiter.stages.losses import Severity
from promptiter.stages.routes import MissedRoute, RouteMap, find_missing_tool, read_tool_name
from traces import ExecutionTrace, Step

PROVEN, LIKELY = 0.9, 0.7

MIN_INPUTS = 2
"""At least this many inputs of a branch show what they have in common."""

TYPICAL_SHARE = 0.8


def blame_wrong_route(findings: Sequence[Finding], collector: BlameCollector, *, severity: Severity) -> bool:
    """Blame the step that chose a wrong route, if there is one. `findings` are those about tool calls."""
    routes = RouteMap(collector.context.request.snapshot)
    missed = routes.list_missed(collector.context.trace)
    if not missed:
        return False
    return _RouteBlame(collector, routes, severity=severity).blame(findings, missed)


@dataclass(frozen=True, slots=True)
class _Visit:
    """A step with branches in some run, the branches that the run took after it, and the right one, if it is known."""

    trace: ExecutionTrace
    step: Step
    taken: tuple[str, ...]
    right: str = ""


class _RouteBlame:
    """Finds the step that chose a wrong route in one trace, and what it should have answered."""

    def __init__(self, collector: BlameCollector, routes: RouteMap, *, severity: Severity) -> None:
        self.collector = collector
        self.context = collector.context
        self.routes = routes
        self.severity = severity
        self._visits = [visit for peer in self.context.request.peers for visit in self._list_visits(peer)]

    def blame(self, findings: Sequence[Finding], missed: Sequence[MissedRoute]) -> bool:
        for finding in findings:
            tool = find_missing_tool(finding)
            if tool and (ways := self._find_ways_to(tool)):
                self._blame_for_tool(finding, ways)
                return True
        if any(self._has_run(find_missing_tool(finding)) for finding in findings):
            return False  # it is in the right branch
        found = self._find_by_inputs(findings, missed)
        if found is not None:
            reason = "The output of this step led to a branch that is not for such inputs"
            self._add(
                found,
                reason=reason,
                subject=f"it should lead {_describe_turn(found)}",
                confidence=LIKELY,
                is_certain=True,
            )
        return found is not None

    def _has_run(self, tool: str) -> bool:
        """Whether a node that has the tool ran."""
        owners = self.routes.find_owners(tool)
        return bool(owners) and not self.routes.find_absent_owners([tool], self.context.trace)

    def _find_ways_to(self, tool: str) -> tuple[MissedRoute, ...]:
        """The branches to the nodes that have a tool, or that call it in passing runs."""
        owners = {*self.routes.find_owners(tool), *find_usual_callers(self.context, tool)}
        return self.routes.find_ways(self.context.trace, owners)

    def _blame_for_tool(self, finding: Finding, ways: Sequence[MissedRoute]) -> None:
        """Blame the step that chose the route, or one before it that lost what the call needs."""
        arguments = finding.expected.get("arguments") if isinstance(finding.expected, Mapping) else None
        step = self.context.find_nearest_editable(ways[0].step) or ways[0].step
        if not blame_source_of(arguments, finding, self.collector, step=step, severity=self.severity):
            reason = "The output of this step led to a branch that lacks an expected tool"
            subject = f"{describe_call(finding.expected)} needs the route {_describe_turn(ways[0])}"
            self._add(ways[0], reason=reason, subject=subject, confidence=PROVEN, is_certain=len(ways) == 1)

    def _find_by_inputs(self, findings: Sequence[Finding], missed: Sequence[MissedRoute]) -> MissedRoute | None:
        """The only branch whose inputs are like this one, after the last step with such a branch.

        In a loop, the inputs of a node differ from visit to visit, and a limit may have ended it: they show nothing.
        """
        visits = Counter(step.node_id for step in self.context.trace.steps)
        for step_id in dict.fromkeys(route.step.id for route in reversed(missed) if visits[route.step.node_id] == 1):
            routes = [route for route in missed if route.step.id == step_id and len(route.taken) == 1]
            likely = [route for route in routes if self._is_likely(route, findings)]
            if len(likely) == 1:
                return likely[0]
        return None

    def _is_likely(self, route: MissedRoute, findings: Sequence[Finding]) -> bool:
        here = _read_traits(route.step)
        usual = self._list_inputs(route.step.node_id, route.taken[0])
        if len(usual) < MIN_INPUTS or not _find_typical(usual) - here:
            return False
        unknown = here.difference(*usual)
        others = self._list_inputs(route.step.node_id, route.node_id)
        if len(others) >= MIN_INPUTS:
            return not unknown.isdisjoint(_find_typical(others))
        return self._names_a_field(route, unknown) or self._made_needless_call(route, findings)

    def _list_inputs(self, node_id: str, branch: str) -> list[frozenset[str]]:
        """The traits of the inputs of a node that are known to be for a branch after it."""
        return [
            _read_traits(each.step) for each in self._visits if (each.step.node_id, each.right) == (node_id, branch)
        ]

    def _names_a_field(self, route: MissedRoute, unknown: frozenset[str]) -> bool:
        """Whether only the instructions of the other branch name a field that the inputs of this branch lack."""
        this, other = self.routes.reach(route.taken[0]), self.routes.reach(route.node_id)
        names = [normalize_name(name) for name in read_fields(snapshot_text(route.step.input)) if name in unknown]
        return any(
            any(self.context.instructions_mention(node_id, name) for node_id in sorted(other - this))
            and not any(self.context.instructions_mention(node_id, name) for node_id in this)
            for name in names
        )

    def _made_needless_call(self, route: MissedRoute, findings: Sequence[Finding]) -> bool:
        """Whether a tool was called needlessly that this branch calls for all of its inputs and the other lacks."""
        needless = {read_tool_name(finding.actual) for finding in findings if finding.kind == "unexpected"}
        runs = [each.trace for each in self._visits if each.taken == (each.right,) == route.taken]
        return any(
            not self.routes.leads_to(route.node_id, self.routes.find_owners(tool))
            and all(_calls(trace, tool) for trace in runs)
            for tool in needless
        )

    def _add(self, route: MissedRoute, *, reason: str, subject: str, confidence: float, is_certain: bool) -> None:
        """Blame the step of a route; if the branch `is_certain`, with what the step should have answered."""
        finding = self._find_right_answer(route) if is_certain else None
        self.collector.add(
            Blame(
                step_id=route.step.id,
                reason=reason,
                subject=subject,
                category="route",
                confidence=confidence,
                severity=self.severity,
                finding=finding,
            )
        )

    def _find_right_answer(self, route: MissedRoute) -> Finding | None:
        """What the step, or the editable one before it, should have answered to take this branch; None if unknown.

        It is the routing word, if such words are what it answers, as a whole or in a field of its JSON. Otherwise it is
        the short answer that led to this branch in other runs.
        """
        blamed = self.context.find_nearest_editable(route.step) or route.step
        here = _Visit(self.context.trace, route.step, route.taken)
        answered: Counter[str] = Counter()
        places: Counter[str] = Counter()
        for visit in (here, *self._visits):
            if visit.step.node_id != route.step.node_id:
                continue
            output = _find_output(visit, blamed.node_id)
            words = {
                strip_answer(word) for each in visit.taken for word in self.routes.branches_of(visit.step.node_id)[each]
            }
            places.update(place for place, text in _read_answers(output).items() if strip_answer(text) in words)
            if route.node_id in visit.taken and 0 < len(output.split()) <= MAX_LABEL_WORDS:
                answered[output] += 1
        actual = snapshot_text(blamed.output)
        if places:
            place = min(places, key=lambda name: (-places[name], name))
            return Finding(kind="wrong", expected=route.words[0], actual=actual, where=place, predicate="route")
        if answered:
            usual = min(answered, key=lambda text: (-answered[text], text))
            return Finding(kind="wrong", expected=usual, actual=actual, predicate="route")
        return None

    def _list_visits(self, peer: Peer) -> Iterator[_Visit]:
        expected = [call.name for call in peer.expected_tool_calls or ()]
        taken = self.routes.list_taken(peer.trace)
        for step in peer.trace.steps:
            if branches := taken.get(step.id):
                right = branches if peer.passed else self.routes.find_branches_with(expected, step.node_id)
                yield _Visit(peer.trace, step, branches, right[0] if len(right) == 1 else "")


def _read_traits(step: Step) -> frozenset[str]:
    """The names of fields and the words of a step's input."""
    text = snapshot_text(step.input)
    return frozenset((*read_fields(text), *count_texts_by_word([text])))


def _find_typical(inputs: Sequence[frozenset[str]]) -> frozenset[str]:
    """What nearly all of these inputs have in common."""
    counts = Counter(trait for traits in inputs for trait in traits)
    return frozenset(trait for trait, count in counts.items() if count >= TYPICAL_SHARE * len(inputs))


def _calls(trace: ExecutionTrace, tool: str) -> bool:
    return any(call.name == tool for step in trace.steps for call in step.tool_calls)


def _find_output(visit: _Visit, node_id: str) -> str:
    """The output of the last visit of a node up to a step with branches; empty if there is none."""
    before = visit.trace.steps[: visit.trace.steps.index(visit.step) + 1]
    return next((snapshot_text(step.output) for step in reversed(before) if step.node_id == node_id), "")


def _read_answers(output: str) -> dict[str, str]:
    """The whole output, and the texts of a JSON document by their paths."""
    leaves = {f"$.{'.'.join(keys)}": json_text(leaf) for keys, leaf in json_leaves(read_document(output)) if keys}
    return {"": output, **leaves}


def _describe_turn(route: MissedRoute) -> str:
    return f"to {route.node_id!r} instead of {' and '.join(map(repr, route.taken))}"


def list_routes(trace: ExecutionTrace) -> list[tuple[str, frozenset[str]]]:
    """For each step its node and the nodes that follow it."""
    successors: defaultdict[str, set[str]] = defaultdict(set)
    for step in trace.steps:
        for source in step.predecessors:
            successors[source].add(step.node_id)
    return [(step.node_id, frozenset(successors[step.id])) for step in trace.steps]


def join_nodes(node_ids: frozenset[str]) -> str:
    return " and ".join(repr(node_id) for node_id in sorted(node_ids)) or "the end"
