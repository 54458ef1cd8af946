"""Values followed back through a trace, from where they are missing or wrong to where that began.

Each walk looks at a step once, in the reverse order of the trace, so it takes time in proportion to steps and edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from promptiter.offline.attribution.expected_values import Atom
from promptiter.offline.attribution.trace_context import Scene
from promptiter.offline.attribution.value_search import Value, plain_words
from traces import Step


@dataclass(slots=True)
class Walk:
    """Where a walk came along, which ways it took, and the steps where what it followed began."""

    looked_at: list[str] = field(default_factory=list)
    ways: list[tuple[str, str]] = field(default_factory=list)
    found: list[str] = field(default_factory=list)

    def go_on(self, step: Step, sources: Iterable[str], *, wanted: set[str]) -> None:
        for source in sources:
            wanted.add(source)
            self.ways.append((step.id, source))


def follow_missing(scene: Scene, atom: Atom, *, starts: Iterable[str], is_surely_lacking: bool = False) -> Walk:
    """To the steps that were given the value and did not hand it on: it was lost there.

    A step that was not given it sends the walk to its predecessors, all of which lack it. Nothing found: no step that
    matters ever had it.
    """
    walk = Walk()
    wanted = {start for start in starts if is_surely_lacking or not scene.texts.output(start).shows(atom.value)}
    for step in _backwards(scene, wanted):
        walk.looked_at.append(step.id)
        if _was_given(scene, step, atom):
            walk.found.append(step.id)
        else:
            walk.go_on(step, step.predecessors, wanted=wanted)
    return walk


def follow_unexpected(scene: Scene, value: Value, *, starts: Iterable[str]) -> Walk:
    """To the steps that show the value although nothing that they were given does: it was introduced there.

    A step with nothing to be blamed makes nothing up: a function looks things up, as a tool does.
    """
    walk = Walk()
    texts = scene.texts
    wanted = {start for start in starts if texts.output(start).shows(value)}
    for step in _backwards(scene, wanted):
        walk.looked_at.append(step.id)
        sources = texts.handed_by(step, value)
        walk.go_on(step, sources, wanted=wanted)
        was_given = sources or texts.input(step.id).shows(value) or texts.results(step.id).shows(value)
        if not was_given and scene.blamable(step):
            walk.found.append(step.id)
    return walk


def choose(scene: Scene, atom: Atom, *, walk: Walk, needed: Sequence[Value] = ()) -> list[str]:
    """Of the steps that lost a value, those to be mended; `needed` is what else the answer should hold.

    A request that goes to several branches is rightly dropped by all but one. That one is, in this order: what can be
    mended at all; a node that shows such values in passing runs; the branch whose own instructions name the field;
    the one that carried the value furthest; one that hands on nothing else that is needed, so that it has no other
    business; one that is told to carry everything; one whose nodes are called like the field (`weigh` for `weight`).
    Of what is left any one will do, so it is the first: the least change.
    """
    left = list(walk.found)
    if len(left) < 2:
        return left
    shown = scene.shown_in_passing(scene.shape(atom))
    name = scene.field(atom)
    region = _own_steps(scene, atom.value, walk)
    carried = _carried(scene, atom.value, left)
    scores: tuple[Callable[[str], int], ...] = (
        lambda step_id: bool(scene.blamable(scene.steps[step_id])),
        lambda step_id: scene.steps[step_id].node_id in shown,
        lambda step_id: any(scene.mentions(node_id, name) for node_id in region[step_id]),
        lambda step_id: carried[step_id],
        lambda step_id: not any(scene.texts.output(step_id).shows(value) for value in needed),
        lambda step_id: any(scene.is_told_to_carry_all(node_id) for node_id in region[step_id]),
        lambda step_id: any(_is_called_like(node_id, name) for node_id in region[step_id]),
    )
    for score in scores:
        best = max(map(score, left))
        left = [step_id for step_id in left if score(step_id) == best]
    first = scene.steps[left[0]].node_id
    return [step_id for step_id in left if scene.steps[step_id].node_id == first]


def _is_called_like(node_id: str, field: str) -> bool:
    """Whether the name of a node and that of a field have a word in common, or the beginning of one."""
    words, others = plain_words(node_id).split(), field.split()
    return any(
        len(word) > 3 and len(other) > 3 and (word.startswith(other[:5]) or other.startswith(word[:5]))
        for word in words
        for other in others
    )


def _backwards(scene: Scene, wanted: set[str]) -> Iterator[Step]:
    """The wanted steps, last first; more may become wanted on the way."""
    last = max((scene.position[step_id] for step_id in wanted), default=-1)
    for index in range(last, -1, -1):
        step = scene.trace.steps[index]
        if step.id in wanted:
            yield step


def _was_given(scene: Scene, step: Step, atom: Atom) -> bool:
    texts, value = scene.texts, atom.value
    if texts.handed_by(step, value) or texts.results(step.id).shows(value):
        return True
    return texts.input(step.id).shows(value) and not _waits_for_it(scene, step, atom)


def _waits_for_it(scene: Scene, step: Step, atom: Atom) -> bool:
    """Whether a step that sees the value, but not from its predecessors, was to get it from them all the same.

    A step with nothing to be blamed was: it may only wrap the others. So was one that sees it in the user's request if
    its predecessors show such values in passing runs, or if only their instructions name the field.
    """
    if not step.predecessors:
        return False
    if not scene.blamable(step):
        return True
    if not scene.said.shows(atom.value):
        return False
    before = [scene.steps[source].node_id for source in step.predecessors]
    if shown := scene.shown_in_passing(scene.shape(atom)):
        return not shown.isdisjoint(before)
    name = scene.field(atom)
    return not scene.mentions(step.node_id, name) and any(scene.mentions(node_id, name) for node_id in before)


def _carried(scene: Scene, value: Value, losing: Iterable[str]) -> dict[str, int]:
    """How many steps in a row handed the value on before each of these lost it."""
    length: dict[str, int] = {}
    wanted = frozenset(losing)
    carried: dict[str, int] = {}
    for step in scene.trace.steps:
        before = max((length.get(source, 0) for source in step.predecessors), default=0)
        if step.id in wanted:
            carried[step.id] = before
        elif scene.texts.output(step.id).shows(value):
            length[step.id] = before + 1
    return carried


def _own_steps(scene: Scene, value: Value, walk: Walk) -> dict[str, set[str]]:
    """For each losing step the nodes of its branch alone: those that carried the value to it, and those behind it."""
    found, walked = set(walk.found), set(walk.looked_at)
    nodes = {step_id: {scene.steps[step_id].node_id} for step_id in walk.found}

    def keep(step: Step, owners: set[str]) -> str:
        owner = owners.pop() if len(owners) == 1 else ""
        if owner:
            nodes[owner].add(step.node_id)
        return owner

    behind: dict[str, str] = {step_id: step_id for step_id in found}
    for step in scene.trace.steps:
        if step.id in walked and step.id not in found:
            behind[step.id] = keep(step, {behind[source] for source in step.predecessors if source in behind})
    before: dict[str, set[str]] = {}
    for step in reversed(scene.trace.steps):
        if step.id in found:
            owner = step.id
        elif step.id in before and scene.texts.output(step.id).shows(value):
            owner = keep(step, before[step.id])
        else:
            continue
        for source in step.predecessors:
            before.setdefault(source, set()).add(owner)
    return nodes
