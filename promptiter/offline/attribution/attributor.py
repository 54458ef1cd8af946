"""EvidenceAttributor: blame from what the trace shows, without a model.

Findings are taken apart into atoms, and each is followed back from the step where the loss stands:

- *lost*: a step was given the value and its output lacks it. The gradient goes there.
- *introduced*: a step shows a wrong value that nothing it was given shows. The gradient goes there.
- *absent*: neither its input nor its output shows the value. Packets go on, only to predecessors that lack it too.
- absent at every root: the node that first shows such values in passing runs (Ochiai); else, with low confidence, it
  is knowledge that the step where the loss stands should have.
- a *form* that the answer breaks is made by the step where the loss stands, or the one that it only copies.

Each value has its own way back. Steps behind the first loss of a value are unobserved, not innocent: they get no
gradient now; the strategy mends what was found, runs the case again, and looks again. A node that was visited several
times is blamed for the visit whose loss reaches the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.blame_results import Blame, Blames, named
from promptiter.offline.attribution.expected_values import Atom, Atoms, take_apart
from promptiter.offline.attribution.format_blame import blame_forms, writer_of
from promptiter.offline.attribution.references import references_of
from promptiter.offline.attribution.tool_blame import blame_tools
from promptiter.offline.attribution.trace_context import Scene
from promptiter.offline.attribution.traversal import choose, follow_missing, follow_unexpected
from promptiter.offline.attribution.value_search import fold
from promptiter.stages.contracts import AttributeRequest, BackwardResult
from promptiter.stages.losses import Category, Loss
from traces import ExecutionTrace, Step

LOST, LOST_WEAKLY, INTRODUCED, SUSPECT, ROUTE, ERROR, LIMIT = 0.9, 0.5, 0.7, 0.6, 0.5, 0.7, 0.5
JUDGED, KNOWLEDGE = 0.3, 0.2
"""How sure each kind of evidence is."""


class EvidenceAttributor:
    """An Attributor that needs no model. It makes no calls, and the same request always has the same answer."""

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        """The results of the steps that were looked at, in the order of the trace."""
        attribution = _Attribution(request)
        attribution.find()
        return attribution.blames.results()


@dataclass(frozen=True, slots=True)
class _Placed:
    """The atoms of a loss, and the steps where it stands."""

    atoms: Atoms
    starts: tuple[str, ...]


class _Attribution:
    """The blame for one trace."""

    def __init__(self, request: AttributeRequest) -> None:
        self.scene = Scene(request)
        self.blames = Blames(self.scene)
        self.placed = self._place(request.case_loss.losses)
        for placed in self.placed:
            self.blames.look_at(placed.starts)

    def find(self) -> None:
        """Go from what is sure to what is likely; what is less sure counts only where nothing better was found."""
        self._blame_errors()
        for placed in self.placed:
            severity = placed.atoms.loss.severity
            blame_tools(placed.atoms.tools, self.blames, last=placed.starts[-1], severity=severity)
        for placed in self.placed:
            self._blame_lost(placed)
        for blame in (self._blame_introduced, self._blame_suspects):
            if not self.blames:
                blame()
        unobserved = self.scene.behind(list(self.blames.blamed))
        for placed in self.placed:
            last, severity = placed.starts[-1], placed.atoms.loss.severity
            blame_forms(placed.atoms.forms, self.blames, last=last, severity=severity, unobserved=unobserved)
        for blame in (self._blame_route, self._blame_the_unknown):
            if not self.blames:
                blame()
        self._blame_limits()

    def _place(self, losses: Sequence[Loss]) -> list[_Placed]:
        """Losses taken apart, once where they stand on several steps."""
        request = self.scene.request
        expected = [loss.expected for loss in losses[:1]]
        references = references_of([*expected, *(peer.expected for peer in request.peers)])
        groups: defaultdict[tuple[str, str, str], list[Loss]] = defaultdict(list)
        for loss in losses:
            if loss.step_id in self.scene.steps:
                groups[loss.metric, loss.category, loss.text].append(loss)
        placed = []
        for same in groups.values():
            starts = self._answering(same)
            output = self.scene.texts.output(starts[-1]).raw
            atoms = take_apart(same[0], references, output=output, request=request.case_loss.input)
            placed.append(_Placed(atoms, starts))
        return placed

    def _answering(self, losses: Sequence[Loss]) -> tuple[str, ...]:
        """The steps of a loss in the order of the trace: of several ends, those whose output was judged, if known."""
        judged = {fold(finding.actual) for finding in losses[0].findings if isinstance(finding.actual, str)}
        ends = sorted({loss.step_id for loss in losses}, key=self.scene.position.__getitem__)
        return tuple(end for end in ends if fold(self.scene.texts.output(end).raw) in judged) or tuple(ends)

    def _blame_errors(self) -> None:
        for placed in self.placed:
            if placed.atoms.loss.category == "error":
                for start in placed.starts:
                    told = self.scene.steps[start].error or placed.atoms.loss.text
                    self._add(
                        placed,
                        start,
                        lead="This step failed",
                        what=repr(str(told)[:200]),
                        category="error",
                        confidence=ERROR,
                    )

    def _blame_lost(self, placed: _Placed) -> None:
        """Blame the steps that lost values. Weak ones may be lost with good reason: there, those that lost most."""
        lost = self._lost(placed, placed.atoms.of_kind("missing", is_strong=True))
        lost = lost or self._lost(placed, placed.atoms.of_kind("missing", is_strong=False))
        weakly = Counter(step_id for atom, step_ids in lost if not atom.is_strong for step_id in step_ids)
        most = max(weakly.values(), default=0)
        for atom, step_ids in lost:
            confidence = LOST if atom.is_strong else LOST_WEAKLY
            for step_id in step_ids:
                if not atom.is_strong and weakly[step_id] < most:
                    continue
                needs = "later steps need" if step_id in self.scene.followed else "the answer needs"
                self._add(
                    placed,
                    step_id,
                    lead=f"This step was given these values and its output lacks them, though {needs} them",
                    what=self._name(atom),
                    category="response",
                    confidence=confidence / _nodes(self.scene, step_ids),
                    finding=atom.finding,
                )

    def _lost(self, placed: _Placed, atoms: Iterable[Atom]) -> list[tuple[Atom, list[str]]]:
        """The atoms that were lost, and where; a longer text that nobody had as a whole is followed in its parts."""
        lost: list[tuple[Atom, list[str]]] = []
        waiting = deque(atoms)
        while waiting:
            atom = waiting.popleft()
            walk = follow_missing(self.scene, atom, starts=placed.starts)
            self.blames.send(walk, atom, severity=placed.atoms.loss.severity)
            if chosen := choose(self.scene, atom, walk=walk, needed=placed.atoms.needed):
                lost.append((atom, chosen))
            elif walk.looked_at and atom.value.kind == "text":
                waiting.extend(atom.parts())
        return lost

    def _blame_introduced(self) -> None:
        """Blame the steps that brought in what stands in the place of a missing value, or what should not be there."""
        for placed in self.placed:
            missing = placed.atoms.of_kind("missing")
            unexpected = [] if missing else placed.atoms.of_kind("unexpected", is_strong=True)
            for atom in (*missing, *unexpected):
                value = atom.counterpart if atom.kind == "missing" else atom.value
                if value is None:
                    continue
                walk = follow_unexpected(self.scene, value, starts=placed.starts)
                self.blames.send(walk, atom, severity=placed.atoms.loss.severity)
                for step_id in walk.found:
                    lead = "These values stand in this step's output and in nothing that it was given"
                    instead = f" instead of {self._name(atom)}" if atom.kind == "missing" else ""
                    self._add(
                        placed,
                        step_id,
                        lead=lead,
                        what=f"{value.text!r}{instead}",
                        category="response",
                        confidence=INTRODUCED / _nodes(self.scene, walk.found),
                        finding=atom.finding,
                    )

    def _blame_suspects(self) -> None:
        """Blame the nodes that first show such values in passing runs and do not here."""
        for placed in self.placed:
            for atom in placed.atoms.of_kind("missing"):
                shape = self.scene.shape(atom)
                suspect = self.scene.suspect(shape)
                if shape is not None and suspect is not None:
                    step, score = suspect
                    lead = f"In passing runs this node is the first to show {shape.name}, and here it shows none"
                    self._add(
                        placed,
                        step.id,
                        lead=lead,
                        what=self._name(atom),
                        category="response",
                        confidence=SUSPECT * score,
                        finding=atom.finding,
                    )

    def _blame_limits(self) -> None:
        """What took too long or cost too much is the fault of the step that took or cost most."""
        for placed in self.placed:
            for finding in placed.atoms.limits:
                measure = _duration if finding.predicate == "max_duration_s" else _cost
                steps = (step for step in self.scene.trace.steps if self.scene.blamable(step))
                most = max(steps, key=measure, default=None)
                if most is not None and measure(most) > 0:
                    self._add(
                        placed,
                        most.id,
                        lead=f"The run is above {finding.predicate}, and this step took the largest share",
                        what=f"{finding.actual} is above {finding.expected}",
                        category="other",
                        confidence=LIMIT,
                        finding=finding,
                    )

    def _blame_route(self) -> None:
        """Blame the first step after which the run went where no passing run goes."""
        known: defaultdict[str, set[frozenset[str]]] = defaultdict(set)
        for peer in self.scene.request.peers:
            if peer.passed:
                for node_id, followers in _ways(peer.trace):
                    known[node_id].add(followers)
        for step, (node_id, followers) in zip(self.scene.trace.steps, _ways(self.scene.trace), strict=True):
            if node_id in known and followers not in known[node_id] and self.placed:
                usual = " or ".join(sorted(_in_words(way) for way in known[node_id]))
                lead = "After this step the run went another way than passing runs do"
                what = f"to {_in_words(followers)} instead of {usual}"
                self._add(self.placed[0], step.id, lead=lead, what=what, category="route", confidence=ROUTE)
                return

    def _blame_the_unknown(self) -> None:
        """Nothing is known of where it went wrong: blame the step where the loss stands, or a tool nobody used."""
        idle = [step.id for step in self.scene.trace.steps if self._has_idle_tools(step)][-1:]
        for placed in self.placed:
            missing = placed.atoms.of_kind("missing")
            lead = "No step was ever given these values; if this step is to know them, it must be told"
            category: Category = "knowledge"
            if idle:
                lead = "No step was ever given these values, and this one has tools that it did not use"
                category = "wrong_tool"
            for atom in missing:
                step_id, what = (*idle, writer_of(self.scene, placed.starts[-1]))[0], self._name(atom)
                self._add(
                    placed,
                    step_id,
                    lead=lead,
                    what=what,
                    category=category,
                    confidence=KNOWLEDGE,
                    finding=atom.finding,
                )
            if not missing and not placed.atoms.limits:
                lead = "The answer was found wrong, and nothing shows where it went wrong"
                reason, category = repr(placed.atoms.loss.text[:200]), placed.atoms.loss.category
                self._add(placed, placed.starts[-1], lead=lead, what=reason, category=category, confidence=JUDGED)

    def _has_idle_tools(self, step: Step) -> bool:
        return bool(self.scene.has_tool(step.node_id) and not step.tool_calls and self.scene.blamable(step))

    def _name(self, atom: Atom) -> str:
        return named(atom.value.text, self.scene.field(atom))

    def _add(
        self,
        placed: _Placed,
        step_id: str,
        *,
        lead: str,
        what: str,
        category: Category,
        confidence: float,
        finding: Finding | None = None,
    ) -> None:
        self.blames.add(
            Blame(
                step_id=step_id,
                lead=lead,
                what=what,
                category=category,
                confidence=confidence,
                severity=placed.atoms.loss.severity,
                finding=finding,
            )
        )


def _nodes(scene: Scene, step_ids: Iterable[str]) -> int:
    return len({scene.steps[step_id].node_id for step_id in step_ids})


def _ways(trace: ExecutionTrace) -> list[tuple[str, frozenset[str]]]:
    """For each step its node and the nodes that follow it."""
    followers: defaultdict[str, set[str]] = defaultdict(set)
    for step in trace.steps:
        for source in step.predecessors:
            followers[source].add(step.node_id)
    return [(step.node_id, frozenset(followers[step.id])) for step in trace.steps]


def _in_words(way: frozenset[str]) -> str:
    return " and ".join(repr(node_id) for node_id in sorted(way)) or "the end"


def _duration(step: Step) -> float:
    return step.duration_ns or 0


def _cost(step: Step) -> float:
    return step.usage.cost_usd or 0.0 if step.usage is not None else 0.0
