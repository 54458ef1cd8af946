"""Random traces: DAGs with fan-out, joins and unrolled loops, and every field filled with anything it may hold."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from traces import Blob, Edge, ExecutionTrace, Failure, Snapshot, Step, ToolCall, Usage

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text(st.sampled_from("abcdefgh#./~[]é "), min_size=1, max_size=6)
whole = st.integers(-(2**63), 2**63 - 1)
counts = st.none() | st.integers(0, 2**40)
times = st.none() | st.integers(0, 2**62)
numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | whole | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant"]),
            "parts": st.lists(st.fixed_dictionaries({"type": st.just("text"), "content": texts}), max_size=2),
        }
    ),
    max_size=3,
)
reserved = st.sampled_from(
    [
        "gen_ai.operation.name",
        "gen_ai.usage.input_tokens",
        "gen_ai.conversation.id",
        "gen_ai.agent.name",
        "gen_ai.tool.name",
        "gen_ai.request.model",
        "gen_ai.input.messages",
        "error.type",
        "promptiter.step.id",
        "promptiter.trace.id",
        "promptiter.node.id",
        "promptiter.attribute.x",
    ]
)
attributes = st.dictionaries(names | reserved, json_values, max_size=3)
blobs = st.builds(Blob, digest=texts, size=st.integers(0, 2**40), media_type=texts)
snapshots = st.builds(
    Snapshot, text=st.none() | texts, data=json_values | messages, blobs=st.lists(blobs, max_size=2).map(tuple)
)
failures = st.none() | st.builds(Failure, type=texts, message=texts)
usages = st.none() | st.builds(
    Usage, input_tokens=counts, output_tokens=counts, cached_input_tokens=counts, cost_usd=st.none() | numbers
)
tool_calls = st.lists(
    st.builds(
        ToolCall,
        name=texts,
        id=st.none() | texts,
        arguments=json_values,
        result=json_values,
        error=failures,
        start_ns=times,
        end_ns=times,
    ),
    max_size=2,
).map(tuple)


@st.composite
def graphs(draw: st.DrawFn, max_steps: int = 14) -> list[tuple[str, str, tuple[str, ...]]]:
    """Step id, node id and predecessors of each step of a random DAG, in a random order of a random shape."""
    size = draw(st.integers(1, max_steps))
    nodes = draw(st.lists(names, min_size=1, max_size=max(1, size // 2), unique=True))  # fewer nodes than steps: loops
    visits: dict[str, int] = {}
    made: list[tuple[str, str, tuple[str, ...]]] = []
    taken: set[str] = set()
    for _ in range(size):
        node = draw(st.sampled_from(nodes))
        while True:
            visits[node] = visits.get(node, 0) + 1
            step_id = node if visits[node] == 1 else f"{node}~{visits[node]}"
            if step_id not in taken:
                break
        taken.add(step_id)
        earlier = [step[0] for step in made]
        sources = draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []
        made.append((step_id, node, tuple(sources)))
    return made


@st.composite
def traces(draw: st.DrawFn, max_steps: int = 14, *, rich: bool = True) -> ExecutionTrace:
    steps = []
    for step_id, node_id, sources in draw(graphs(max_steps)):
        if not rich:
            duration = draw(st.integers(0, 50))
            start = draw(st.integers(1, 100))
            error = draw(st.none() | st.just(Failure("Oops")))
            steps.append(
                Step(
                    id=step_id,
                    node_id=node_id,
                    predecessors=sources,
                    start_ns=start,
                    end_ns=start + duration,
                    error=error,
                )
            )
            continue
        edges = draw(
            st.lists(
                st.builds(
                    Edge,
                    source=st.sampled_from(sources),
                    kind=st.sampled_from(["control", "data"]),
                    evidence=texts,
                    confidence=st.floats(0, 1),
                ),
                max_size=3,
                unique_by=lambda edge: (edge.source, edge.kind),
            )
            if sources
            else st.just([])
        )
        steps.append(
            Step(
                id=step_id,
                node_id=node_id,
                kind=draw(st.sampled_from(["agent", "llm", "function", "tool"])),
                predecessors=sources,
                edges=tuple(edges),
                surface_reads=draw(st.none() | st.dictionaries(names, texts, max_size=2)),
                input=draw(snapshots),
                output=draw(snapshots),
                tool_calls=draw(tool_calls),
                error=draw(failures),
                usage=draw(usages),
                start_ns=draw(times),
                end_ns=draw(times),
                attributes=draw(attributes),
            )
        )
    if not rich:
        failed = any(step.error for step in steps)
        return ExecutionTrace(id="t", steps=tuple(steps), status="failed" if failed else "completed")
    return ExecutionTrace(
        id=draw(texts),
        steps=tuple(steps),
        status=draw(st.sampled_from(["completed", "incomplete", "failed"])),
        conversation_id=draw(st.none() | texts),
        attributes=draw(attributes),
    )


def shuffle_steps(trace: ExecutionTrace, seed: int) -> tuple[Step, ...]:
    steps = list(trace.steps)
    random.Random(seed).shuffle(steps)
    return tuple(steps)
