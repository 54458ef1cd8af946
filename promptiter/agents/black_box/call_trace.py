"""The trace of a black-box run: its model calls are the steps.

A tool loop is one step. Its node is the one that the agent names, else that of the prompt in its request, else
the agent as a whole. Who read whose output is recovered by text, as for imported spans. The agent as a whole is a last
step if its own code took part: it may have read prompts that no request contains, or written the answer itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from promptiter.agents.base import CaseInput, to_text
from promptiter.agents.black_box.prompt_matching import PromptMatcher
from promptiter.agents.black_box.tool_loops import ToolLoop, find_tool_loops
from promptiter.agents.step_calls import REQUESTS
from promptiter.endpoint.sessions import EndpointCall
from promptiter.llm.messages import EmbeddingRequest
from promptiter.structure import StructureSnapshot
from traces import Edge, Failure, Step, digest
from traces.model import Json, Snapshot
from traces.otel.recover.content import GivenTexts, TextIndex
from traces.otel.recover.edges import CONFIDENCE
from traces.snapshots import take_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackBoxRun:
    """What is known about a run: what the agent got and answered, and the model calls in between."""

    snapshot: StructureSnapshot
    values: Mapping[str, Json]
    case: CaseInput
    answer: str
    data: Json
    error: Failure | None
    calls: Sequence[EndpointCall]
    start_ns: int
    end_ns: int


@dataclass(slots=True, eq=False)
class _Draft:
    """A step before its id is known. `sources` are those whose text it read, `triggers` only came before it."""

    loop: ToolLoop
    node_id: str
    reads: tuple[str, ...]
    sources: dict[_Draft, None] = field(default_factory=dict)
    triggers: list[_Draft] = field(default_factory=list)
    shows_given: bool = False
    depth: int = 0
    id: str = ""


def build_steps(run: BlackBoxRun) -> tuple[Step, ...]:
    """The steps of a run; one, of the agent as a whole, if no model call is visible."""
    matcher = PromptMatcher(run.snapshot, run.values, run.case.text)
    calls = [call for call in run.calls if not isinstance(call.request, EmbeddingRequest)]  # embeddings are not steps
    drafts = [_draft(loop, matcher, run.snapshot) for loop in find_tool_loops(calls)]
    _find_sources(drafts, run)
    _find_triggers(drafts)
    _name(drafts)
    steps = [_build_step(draft, run.values) for draft in drafts]
    last = _build_last(run, steps, unseen=set(run.values) - {each for draft in drafts for each in draft.reads})
    return (*steps, *([] if last is None else [last]))


def _draft(loop: ToolLoop, matcher: PromptMatcher, snapshot: StructureSnapshot) -> _Draft:
    reads = dict.fromkeys(each for call in loop.calls for each in matcher.find_prompts(call.request))
    node = matcher.find_node(loop.first.request, loop.first.node)
    return _Draft(loop, node or snapshot.name, tuple(reads))


def _find_sources(drafts: Sequence[_Draft], run: BlackBoxRun) -> None:
    """Find for each step those whose text is in one of its requests.

    Where several produced a text, and none of them is known to have been read for another one, it is from those that
    build on most other steps. The clock cannot tell: calls of parallel branches end in any order.
    """
    given = GivenTexts([run.case.text, *(each.content for each in run.case.history), *_list_texts(run.values)])
    known = GivenTexts([run.case.text])
    index = TextIndex(given)
    ended = sorted(drafts, key=lambda each: (each.loop.end_ns, each.loop.start_ns, each.loop.first.request.digest))
    indexed = 0
    requests = [(call, draft) for draft in drafts for call in draft.loop.calls]
    for call, draft in sorted(requests, key=lambda pair: (pair[0].start_ns, pair[0].end_ns)):
        while indexed < len(ended) and ended[indexed].loop.end_ns <= call.start_ns and ended[indexed] is not draft:
            index.add(indexed, [_to_text(ended[indexed].loop.output)])
            indexed += 1
        texts = dict.fromkeys(message.content for message in call.request.messages)
        draft.shows_given = draft.shows_given or _shows(texts, run.case.text, known)
        for text in texts:
            whole = index.find_whole(text)
            producers = [whole] if whole else index.find_passages(text)
            found = _choose_producers([[ended[place] for place in places] for places in producers])
            draft.sources |= dict.fromkeys(found)
        draft.depth = max((each.depth + 1 for each in draft.sources), default=0)


def _choose_producers(producers: Sequence[Sequence[_Draft]]) -> set[_Draft]:
    """Which steps a text was read from, given those that produced each of its passages."""
    certain = {each[0] for each in producers if len(each) == 1}
    found = set(certain)
    for each in producers:
        if certain.isdisjoint(each):
            deepest = max(draft.depth for draft in each)
            found.update(draft for draft in each if draft.depth == deepest)
    return found


def _find_triggers(drafts: Sequence[_Draft]) -> None:
    """Link a step to the one before it if no step read that one's output, or if nothing else explains this step.

    Times alone say little about calls that may have been concurrent.
    """
    read = {source for draft in drafts for source in draft.sources}
    ended = sorted(drafts, key=lambda each: each.loop.end_ns)
    ends = [each.loop.end_ns for each in ended]
    latest_starts = list(accumulate((each.loop.start_ns for each in ended), max, initial=-1))
    for draft in drafts:
        before = bisect_right(ends, draft.loop.start_ns)
        first = bisect_right(ends, latest_starts[before], hi=before)  # the others ended before one of these began
        latest = [each for each in ended[first:before] if each not in draft.sources and each is not draft]
        is_alone = len(latest) == 1 and latest[0] not in read and not _are_siblings(latest[0], draft)
        if is_alone or (not draft.sources and not draft.shows_given):
            draft.triggers = latest


def _are_siblings(one: _Draft, other: _Draft) -> bool:
    """Whether two steps do the same for different branches; if in parallel, either may end first."""
    return one.node_id == other.node_id and one.depth == other.depth


def _name(drafts: Sequence[_Draft]) -> None:
    """Give each step the path of its node, numbered by what it read and asked, not by the clock."""
    seen: Counter[str] = Counter()
    for draft in sorted(drafts, key=_order):
        seen[draft.node_id] += 1
        number = seen[draft.node_id]
        draft.id = draft.node_id if number == 1 else f"{draft.node_id}~{number}"


def _order(draft: _Draft) -> tuple[int, str, str, int]:
    first = draft.loop.first
    return draft.depth, first.request.digest, first.node, first.number


def _build_step(draft: _Draft, values: Mapping[str, Json]) -> Step:
    loop = draft.loop
    edges = [
        Edge(source=each.id, kind="data", evidence="text", confidence=CONFIDENCE["text"]) for each in draft.sources
    ] + [Edge(source=each.id, evidence="time", confidence=CONFIDENCE["time"]) for each in draft.triggers]
    return Step(
        id=draft.id,
        node_id=draft.node_id,
        kind="llm",
        predecessors=tuple(edge.source for edge in edges),
        edges=tuple(edges),
        surface_reads={name: digest(values[name]) for name in sorted(draft.reads)},
        input=Snapshot(loop.input),
        output=take_snapshot(loop.output, {}),
        tool_calls=loop.tool_calls,
        error=loop.error,
        usage=loop.usage,
        start_ns=loop.start_ns,
        end_ns=loop.end_ns,
        attributes={
            "gen_ai.request.model": loop.first.request.model,
            REQUESTS: [call.request.digest[:16] for call in loop.calls],
        },
    )


def _build_last(run: BlackBoxRun, steps: Sequence[Step], *, unseen: set[str]) -> Step | None:
    """The step of the agent's own code; None if nothing shows that it took part."""
    followed = {source for step in steps for source in step.predecessors}
    ends = [step for step in steps if step.id not in followed]
    is_passed_on = len(ends) == 1 and _to_text(ends[0].output.text or ends[0].output.data).strip() == run.answer.strip()
    if not unseen and is_passed_on and run.error is None:
        return None
    taken = sum(step.node_id == run.snapshot.name for step in steps)
    name = run.snapshot.name
    return Step(
        id=name if not taken else f"{name}~{taken + 1}",
        node_id=name,
        kind="agent",
        predecessors=tuple(step.id for step in ends),
        surface_reads={each: digest(run.values[each]) for each in sorted(unseen)},
        input=Snapshot(run.case.text),
        output=Snapshot(run.answer, run.data),
        error=run.error,
        start_ns=run.start_ns,
        end_ns=run.end_ns,
    )


def _shows(texts: Iterable[str], case: str, known: GivenTexts) -> bool:
    """Whether a request has the message of the case, or a line of it."""
    return any(case.strip() in text or not known.lines.isdisjoint(map(str.strip, text.splitlines())) for text in texts)


def _list_texts(values: Mapping[str, Json]) -> list[str]:
    return [value for value in values.values() if isinstance(value, str)]


def _to_text(value: Json) -> str:
    return "" if value is None else to_text(value)
