"""Several runs of one application agree on who followed whom.

Time alone cannot tell a step that waited for another from one that only started later. Another run can: if the first
step was still running there when the second one started, nothing was waited for. So edges that are known by time only
are dropped if another run contradicts them, and the order is reduced again. And what one run shows as text may be
hidden in the next: a step follows another one if it read that one's text in a fair share of the runs. What spans state
(links, names, calls) and what users state is never changed.

Traces are passed twice, first to `add`, then to `apply`. In between only counts are kept, per application and pair of
executions, so traces can be read from a file both times. An execution is a node and how often it ran before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import or_
from typing import TypeAlias

from traces.model import Edge, ExecutionTrace, Step
from traces.otel.recover.edges import CONFIDENCE

APPLICATION = "promptiter.application"
"""Trace attribute: what makes runs comparable, the name of the outermost span. Nodes are compared by their names."""

CORRECTED = ("time", "text", "consensus")
"""Only steps whose edges have no other evidence are changed."""

MIN_SHARE = 0.3
"""A step follows another one if its text was read in this share of the runs in which both ran."""

MIN_RUNS = 5
"""In so many runs a step must have run before it counts that it never had to wait for another one."""

MOST_APPLICATIONS = 1_000
MOST_EXECUTIONS = 2_000
"""Applications, and executions of an application, beyond these are left as they are, so that memory is bounded."""

Execution: TypeAlias = tuple[str, int]


def reach_consensus(traces: Sequence[ExecutionTrace]) -> list[ExecutionTrace]:
    """The traces with the edges that all runs of the same application agree on. Others stay as they are."""
    consensus = Consensus()
    for trace in traces:
        consensus.add(trace)
    return [consensus.apply(trace) for trace in traces]


class Consensus:
    """What the runs of each application say about the order of its steps."""

    def __init__(self) -> None:
        self._applications: dict[str, _Application] = {}

    def add(self, trace: ExecutionTrace) -> None:
        """Count what a run says. Traces that were recorded, not recovered, say nothing."""
        name = trace.attributes.get(APPLICATION)
        if isinstance(name, str) and (name in self._applications or len(self._applications) < MOST_APPLICATIONS):
            self._applications.setdefault(name, _Application()).add(trace)

    def apply(self, trace: ExecutionTrace) -> ExecutionTrace:
        """A trace with the edges that the runs agree on; the same object if nothing changes."""
        application = self._applications.get(str(trace.attributes.get(APPLICATION)))
        if application is None or application.runs < 2:
            return trace
        return application.apply(trace)


class _Application:
    """The runs of one application. Executions are numbered, and a set of them is the bits of an integer."""

    def __init__(self) -> None:
        self.runs = 0
        self._numbers: dict[Execution, int] = {}
        self._seen: list[int] = []
        self._overlapping: list[int] = []  # for each execution, those that ran at the same time in some run
        self._later: list[int] = []  # those that started after it had ended
        self._awaited: list[int] = []  # those that were the last to end before it started, or whose text it read
        self._read: list[Counter[int]] = []  # those whose text it read, and in how many runs
        self.followed = 0  # executions that another one awaited
        self._repeated = 0  # executions of nodes that ran several times in one run
        self._unordered: set[str] = set()  # nodes that ran several times at once: their executions are not alike

    def add(self, trace: ExecutionTrace) -> None:
        ordered = _sort_by_time(trace)
        if ordered is None:
            return
        self.runs += 1
        numbers = self.number_steps(ordered, grow=True)
        by_start = [step for step in ordered if step.id in numbers and step.start_ns and step.end_ns]
        by_end = sorted(by_start, key=lambda step: step.end_ns or 0)
        starts, ends = [step.start_ns or 0 for step in by_start], [step.end_ns or 0 for step in by_end]
        started = [0, *accumulate((1 << numbers[step.id] for step in by_start), or_)]
        ended = [0, *accumulate((1 << numbers[step.id] for step in by_end), or_)]
        end_of = {step.id: step.end_ns or 0 for step in by_start}
        ancestors: dict[str, int] = {}
        for step in ordered:
            above = 0
            for source in step.predecessors:
                above |= ancestors[source] | (1 << numbers[source] if source in numbers else 0)
            ancestors[step.id] = above
            number = numbers.get(step.id)
            if number is None:
                continue
            self._seen[number] += 1
            self._count_awaited(step, number, numbers, end_of)
            if step.start_ns and step.end_ns:
                before = ended[bisect_right(ends, step.start_ns)]
                later = started[-1] & ~started[bisect_left(starts, step.end_ns)]
                self._later[number] |= later
                self._overlapping[number] |= started[-1] & ~(before | later | above | 1 << number)
        self._find_repeated(by_start, numbers)

    def _count_awaited(self, step: Step, number: int, numbers: Mapping[str, int], end_of: Mapping[str, int]) -> None:
        timed = [edge.source for edge in step.edges if edge.evidence == "time" and edge.source in end_of]
        awaited = [max(timed, key=end_of.__getitem__)] if timed else []
        awaited += [edge.source for edge in step.edges if edge.evidence != "time" and edge.source in numbers]
        for source in awaited:
            bit = 1 << numbers[source]
            self._awaited[number] |= bit
            self.followed |= bit
        for edge in step.edges:
            if edge.kind == "data" and edge.evidence == "text" and edge.source in numbers:
                self._read[number][numbers[edge.source]] += 1

    def apply(self, trace: ExecutionTrace) -> ExecutionTrace:
        ordered = _sort_by_time(trace)
        if ordered is None:
            return trace
        walk = _Walk(self, ordered)
        steps = [walk.visit(step) for step in ordered]
        if all(new is old for new, old in zip(steps, ordered, strict=True)):
            return trace
        return replace(trace, steps=tuple(steps))

    def list_read(self, number: int) -> Iterator[int]:
        """The executions whose text this one read in a fair share of the runs."""
        for source, count in self._read[number].items():
            if count >= MIN_SHARE * min(self._seen[source], self._seen[number]):
                yield source

    def find_contradicted(self, number: int) -> int:
        """The executions that had not ended in some run when this one started.

        In a loop, a step may come before another one in one run and after it in the next, and follow it all the same.
        So of nodes that ran several times, only running at the same time counts.
        """
        earlier = 0 if self._repeated >> number & 1 else self._later[number] & ~self._repeated
        return self._overlapping[number] | earlier

    def find_unawaited(self, number: int) -> int:
        """All executions but those that this one had to wait for in some run; 0 if too few runs are known."""
        return ~self._awaited[number] if self._seen[number] >= MIN_RUNS else 0

    def number_steps(self, ordered: Iterable[Step], *, grow: bool = False) -> dict[str, int]:
        """The number of the execution of each step, without those that cannot be told apart."""
        counts: dict[str, int] = {}
        numbers: dict[str, int] = {}
        for step in ordered:
            node_id = step.node_id
            counts[node_id] = count = counts.get(node_id, 0) + 1
            if node_id in self._unordered:
                continue
            execution = node_id, count
            number = self._numbers.get(execution)
            if number is None and grow and len(self._numbers) < MOST_EXECUTIONS:
                number = self._numbers[execution] = len(self._numbers)
                self._read.append(Counter())
                for each in (self._seen, self._overlapping, self._later, self._awaited):
                    each.append(0)
            if number is not None:
                numbers[step.id] = number
        return numbers

    def _find_repeated(self, by_start: Sequence[Step], numbers: Mapping[str, int]) -> None:
        ended: dict[str, tuple[int, int]] = {}
        for step in by_start:
            end, number = ended.get(step.node_id, (0, -1))
            if number >= 0:
                self._repeated |= 1 << number | 1 << numbers[step.id]
                if end > (step.start_ns or 0):
                    self._unordered.add(step.node_id)
            ended[step.node_id] = max(end, step.end_ns or 0), numbers[step.id]


class _Walk:
    """One trace, step by step, with the edges that the runs of its application agree on."""

    def __init__(self, application: _Application, ordered: Sequence[Step]) -> None:
        self.application = application
        self.numbers = application.number_steps(ordered)
        self.bits = {step.id: self.numbers.get(step.id, MOST_EXECUTIONS + at) for at, step in enumerate(ordered)}
        self.steps = {self.bits[step.id]: step for step in ordered}
        self.old: dict[int, int] = {}  # the steps before each one, by the edges that it had
        self.new: dict[int, int] = {}  # and by the order that the runs agree on
        self.followed = application.followed  # steps that another one awaits, or else the first one after them

    def visit(self, step: Step) -> Step:
        bit = self.bits[step.id]
        self.old[bit] = self.new[bit] = 0
        for source in map(self.bits.__getitem__, step.predecessors):
            self.old[bit] |= self.old[source] | 1 << source
        control = {edge.source: edge for edge in step.edges if edge.kind == "control"}
        is_guessed = (
            control and step.id in self.numbers and all(edge.evidence in CORRECTED for edge in control.values())
        )
        chosen = self.choose(step, control) if is_guessed else control
        edges = step.edges
        if chosen != control:
            edges = tuple(sorted([*chosen.values(), *(edge for edge in edges if edge.kind == "data")], key=sort_key))
            step = replace(step, edges=edges, predecessors=tuple({edge.source for edge in edges}))
        for source in map(self.bits.__getitem__, step.predecessors):
            self.new[bit] |= self.new[source] | 1 << source
        return step

    def choose(self, step: Step, control: Mapping[str, Edge]) -> dict[str, Edge]:
        """The steps that a step follows, if that was guessed: by text if there is any, otherwise by time."""
        text = {source: edge for source, edge in control.items() if edge.evidence != "time"}
        for number in self.application.list_read(self.numbers[step.id]):
            source = self.steps.get(number)
            if source is not None and (source.end_ns or 0) <= (step.start_ns or 0):
                text.setdefault(source.id, Edge(source=source.id, evidence="consensus", confidence=0.8))
        timed = {source: edge for source, edge in control.items() if edge.evidence == "time"}
        if text and (len(timed) > 1 or not control.keys() >= text.keys()):
            timed = {}
        found = {**self.follow_order(step, timed), **text}
        covered = 0
        for source_id in found:
            covered |= self.new[self.bits[source_id]]
        return {source: edge for source, edge in found.items() if not covered >> self.bits[source] & 1}

    def follow_order(self, step: Step, timed: Mapping[str, Edge]) -> dict[str, Edge]:
        """The edges by time that no run contradicts, reduced again."""
        number = self.numbers[step.id]
        candidates = 0
        for source in map(self.bits.__getitem__, timed):
            candidates |= self.old[source] | 1 << source
        candidates &= ~self.application.find_contradicted(number)
        found = self.reduce(candidates)
        for bit in found:
            self.new[number] |= self.new[bit] | 1 << bit
        unawaited = self.application.find_unawaited(number)
        kept = [bit for bit in found if not (unawaited & self.followed) >> bit & 1] or found
        if unawaited:
            self.followed |= sum(1 << bit for bit in kept)
        sources = [self.steps[bit] for bit in kept]
        return {source.id: timed.get(source.id) or _make_edge(source, step) for source in sources}

    def reduce(self, candidates: int) -> list[int]:
        """The candidates that are not before another one."""
        found: list[int] = []
        covered = 0
        while candidates:
            bit = candidates.bit_length() - 1
            found.append(bit)
            covered |= self.new[bit]
            candidates &= ~(self.new[bit] | 1 << bit)
        return [bit for bit in found if not covered >> bit & 1]


def _make_edge(source: Step, target: Step) -> Edge:
    if (source.end_ns or 0) > (target.start_ns or 0):
        return Edge(source=source.id, evidence="nesting", confidence=CONFIDENCE["nesting"])
    return Edge(source=source.id, evidence="time", confidence=CONFIDENCE["time"])


def _sort_by_time(trace: ExecutionTrace) -> list[Step] | None:
    """The steps in the order in which they started; None if a step started before one that it follows."""
    ordered = sorted(trace.steps, key=lambda step: step.start_ns or 0)
    seen: set[str] = set()
    for step in ordered:
        if not seen.issuperset(step.predecessors):
            return None
        seen.add(step.id)
    return ordered


def sort_key(edge: Edge) -> tuple[str, str, str, float]:
    return edge.source, edge.kind, edge.evidence, edge.confidence
