"""Values followed back through a trace, from where they are missing or wrong to where that began.

A walk visits each step at most once, in the reverse order of the trace, so it takes time in proportion to the number
of steps and edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from promptiter.offline.attribution.expected_values import Mismatch
from promptiter.offline.attribution.trace_context import TraceContext
from promptiter.offline.attribution.value_search import Value
from traces import Step


@dataclass(slots=True)
class Walk:
    """The steps that a walk visited, the edges it took, and the steps where the fault began."""

    visited: list[str] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)

    def continue_to(self, sources: Iterable[str], *, step: Step, wanted: set[str]) -> None:
        for source in sources:
            wanted.add(source)
            self.edges.append((step.id, source))


def follow_missing(
    context: TraceContext, mismatch: Mismatch, *, starts: Iterable[str], is_surely_lacking: bool = False
) -> Walk:
    """Follow a missing value to the steps that received it and did not pass it on.

    From a step that did not receive it, the walk continues to all steps that it read. Without an origin, no
    relevant step ever had the value.
    """
    walk = Walk()
    value = mismatch.value
    wanted = {start for start in starts if is_surely_lacking or not context.texts.output(start).contains(value)}
    for step in _iterate_backwards(context, wanted):
        walk.visited.append(step.id)
        if _has_received(context, step, mismatch):
            walk.origins.append(step.id)
        else:
            walk.continue_to(step.sources, step=step, wanted=wanted)
    return walk


def follow_unexpected(context: TraceContext, value: Value, *, starts: Iterable[str]) -> Walk:
    """Follow an unexpected value to the steps whose output contains it although nothing they received does.

    A step without editable surfaces does not invent values: a function looks them up, as a tool does. A value that
    nothing gave to a step, and that decided that it ran, comes from the step that chose this route.
    """
    walk = Walk()
    texts = context.texts
    wanted = {start for start in starts if texts.output(start).contains(value)}
    for step in _iterate_backwards(context, wanted):
        walk.visited.append(step.id)
        sources = texts.sources_with(value, step)
        is_received = sources or texts.input(step.id).contains(value) or texts.tool_results(step.id).contains(value)
        if not is_received:
            sources = tuple(each for each in context.find_routers(step) if texts.output(each).contains(value))
        walk.continue_to(sources, step=step, wanted=wanted)
        if not is_received and not sources and context.editable_surfaces(step):
            walk.origins.append(step.id)
    return walk


def choose_losing_steps(
    context: TraceContext, mismatch: Mismatch, *, walk: Walk, needed: Sequence[Value] = ()
) -> list[str]:
    """Of the steps that lost a value, those to fix; `needed` is everything that the answer should contain.

    Where a request goes to several branches, all but one rightly drop the value. The one to fix is, in this order: an
    editable one; one whose output has another value in its place; a node that shows such values in passing runs; the
    branch whose own instructions name the field; one that passes on nothing else that is needed, so that it has no
    other purpose. If several are left, the first is chosen, which is the least change.
    """
    left = list(walk.origins)
    if len(left) < 2:
        return left
    other = mismatch.counterpart
    matching = context.nodes_matching_in_passing_runs(context.pattern_of(mismatch))
    name = context.field_name(mismatch)
    branch = _find_branch_nodes(context, mismatch.value, walk)
    scores: tuple[Callable[[str], bool], ...] = (
        lambda step_id: bool(context.editable_surfaces(context.steps[step_id])),
        lambda step_id: other is not None and context.texts.output(step_id).contains(other),
        lambda step_id: context.steps[step_id].node_id in matching,
        lambda step_id: any(context.instructions_mention(node_id, name) for node_id in branch[step_id]),
        lambda step_id: not any(context.texts.output(step_id).contains(value) for value in needed),
    )
    for score in scores:
        best = max(map(score, left))
        left = [step_id for step_id in left if score(step_id) == best]
    first = context.steps[left[0]].node_id
    return [step_id for step_id in left if context.steps[step_id].node_id == first]


def _iterate_backwards(context: TraceContext, wanted: set[str]) -> Iterator[Step]:
    """The wanted steps, last first; more may be added during the iteration."""
    last = max((context.position[step_id] for step_id in wanted), default=-1)
    for index in range(last, -1, -1):
        step = context.trace.steps[index]
        if step.id in wanted:
            yield step


def _has_received(context: TraceContext, step: Step, mismatch: Mismatch) -> bool:
    texts, value = context.texts, mismatch.value
    if texts.sources_with(value, step) or texts.tool_results(step.id).contains(value):
        return True
    if mismatch.kind == "replaced" and value.kind != "pair":
        return False  # a word that all references share may be in a request by chance
    return texts.input(step.id).contains(value) and not _expects_from_sources(context, step, mismatch)


def _expects_from_sources(context: TraceContext, step: Step, mismatch: Mismatch) -> bool:
    """Whether a step that sees the value, but not from the steps that it read, should have got it there.

    That holds for a step without editable surfaces, which may only wrap others. It also holds for a step that sees
    the value in the user's input, if the steps that it read show such values in passing runs or if only their
    instructions name the field.
    """
    if not step.sources:
        return False
    if not context.editable_surfaces(step):
        return True
    if not context.user_input.contains(mismatch.value):
        return False
    before = [context.steps[source].node_id for source in step.sources]
    if matching := context.nodes_matching_in_passing_runs(context.pattern_of(mismatch)):
        return not matching.isdisjoint(before)
    name = context.field_name(mismatch)
    is_named_before = any(context.instructions_mention(node_id, name) for node_id in before)
    return not context.instructions_mention(step.node_id, name) and is_named_before


def _find_branch_nodes(context: TraceContext, value: Value, walk: Walk) -> dict[str, set[str]]:
    """For each losing step the nodes of its branch only: those that carried the value to it, and those after it."""
    losing, visited = set(walk.origins), set(walk.visited)
    nodes = {step_id: {context.steps[step_id].node_id} for step_id in walk.origins}

    def keep(step: Step, owners: set[str]) -> str:
        owner = owners.pop() if len(owners) == 1 else ""
        if owner:
            nodes[owner].add(step.node_id)
        return owner

    after: dict[str, str] = {step_id: step_id for step_id in losing}
    for step in context.trace.steps:
        if step.id in visited and step.id not in losing:
            after[step.id] = keep(step, {after[source] for source in step.sources if source in after})
    before: dict[str, set[str]] = {}
    for step in reversed(context.trace.steps):
        if step.id in losing:
            owner = step.id
        elif step.id in before and context.texts.output(step.id).contains(value):
            owner = keep(step, before[step.id])
        else:
            continue
        for source in step.sources:
            before.setdefault(source, set()).add(owner)
    return nodes
