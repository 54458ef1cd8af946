"""The trace of a black-box run: its model calls are the steps.

A tool loop is one step. Its node is the one that the agent names, else that of the prompt in its request, else
the agent as a whole. Who read whose output is recovered by text, as for imported spans. The agent as a whole is a last
step if its own code took part: it may have read prompts that are in no request, or its answer is no model's answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from promptiter.agents.base import CaseInput, to_text
from promptiter.agents.black_box.prompt_matching import PromptMatcher
from promptiter.agents.black_box.tool_loops import ToolLoop, find_tool_loops
from promptiter.agents.step_calls import REQUESTS
from promptiter.endpoint.sessions import EndpointCall
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
    sources: list[_Draft] = field(default_factory=list)
    triggers: list[_Draft] = field(default_factory=list)
    shows_given: bool = False
    depth: int = 0
    id: str = ""


def build_steps(run: BlackBoxRun) -> tuple[Step, ...]:
    """The steps of a run; one, of the agent as a whole, if no model call is visible."""
    matcher = PromptMatcher(run.snapshot, run.values)
    drafts = [_draft(loop, matcher, run.snapshot) for loop in find_tool_loops(run.calls)]
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
    """Find for each step those whose text is in one of its requests: of several, the latest that had ended."""
    given = GivenTexts([run.case.text, *(each.content for each in run.case.history), *_list_texts(run.values)])
    known = GivenTexts([run.case.text])
    index = TextIndex(given)
    ended = sorted(drafts, key=lambda each: (each.loop.end_ns, each.loop.start_ns, each.loop.first.request.digest))
    order = {draft: place for place, draft in enumerate(ended)}
    waiting = list(enumerate(ended))
    requests = [(call, draft) for draft in drafts for call in draft.loop.calls]
    for call, draft in sorted(requests, key=lambda pair: (pair[0].start_ns, pair[0].end_ns)):
        while waiting and waiting[0][1].loop.end_ns <= call.start_ns:
            place, done = waiting.pop(0)
            index.add(place, [_to_text(done.loop.output)])
        found: set[int] = set()
        texts = [message.content for message in call.request.messages]
        draft.shows_given = draft.shows_given or _shows(texts, run.case.text, known)
        for text in dict.fromkeys(texts):
            whole = index.find_whole(text)
            for places in [whole] if whole else index.find_passages(text):
                if earlier := [each for each in places if each < order[draft]]:
                    found.add(max(earlier, key=lambda each: (ended[each].loop.start_ns, each)))
        draft.sources += [ended[each] for each in sorted(found) if ended[each] not in draft.sources]


def _find_triggers(drafts: Sequence[_Draft]) -> None:
    """Let a step follow the one before it if nobody read that one's text, or if nothing explains the step itself.

    Times alone say little about calls that may have been concurrent.
    """
    read = Counter(source for draft in drafts for source in draft.sources)
    for draft in drafts:
        before = [each for each in drafts if each.loop.end_ns <= draft.loop.start_ns and each is not draft]
        latest = [each for each in before if not any(each.loop.end_ns <= other.loop.start_ns for other in before)]
        latest = [each for each in latest if each not in draft.sources]
        is_alone = len(latest) == 1 and not read[latest[0]] and not _are_siblings(latest[0], draft)
        if is_alone or (not draft.sources and not draft.shows_given):
            draft.triggers = latest


def _are_siblings(one: _Draft, other: _Draft) -> bool:
    return one.node_id == other.node_id and set(one.sources) == set(other.sources)


def _name(drafts: Sequence[_Draft]) -> None:
    """Give each step the path of its node, numbered by what it read and asked, not by the clock."""
    for draft in sorted(drafts, key=lambda each: each.loop.end_ns):  # sources end earlier
        draft.depth = max((each.depth + 1 for each in draft.sources), default=0)
    seen: Counter[str] = Counter()
    for draft in sorted(drafts, key=lambda each: (each.depth, each.loop.first.request.digest, each.loop.first.number)):
        seen[draft.node_id] += 1
        number = seen[draft.node_id]
        draft.id = draft.node_id if number == 1 else f"{draft.node_id}~{number}"


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


def _shows(texts: Sequence[str], case: str, known: GivenTexts) -> bool:
    """Whether a request has the message of the case, or a line of it."""
    return any(case.strip() in text or not known.lines.isdisjoint(map(str.strip, text.splitlines())) for text in texts)


def _list_texts(values: Mapping[str, Json]) -> list[str]:
    return [value for value in values.values() if isinstance(value, str)]


def _to_text(value: Json) -> str:
    return "" if value is None else to_text(value)
