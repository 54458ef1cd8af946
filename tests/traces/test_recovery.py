"""Recovery of random runs, and of exports of real frameworks whose true step graph is known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import pytest

from tests.worlds.random_runs import Regime, score_recovery
from traces import read_otel

EXPORTS = Path(__file__).parent / "exports"
TRUTHS = sorted((EXPORTS.parent / "truths").glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("regime", "bars"), [("asynchronous", (0.91, 0.85, 0.80, 0.79)), ("supersteps", (0.88, 0.80, 0.72, 0.72))]
)
def test_edges_of_random_runs_are_recovered(regime: Regime, bars: tuple[float, ...]) -> None:
    for hidden, bar in zip((0, 0.2, 0.5, 1), bars, strict=True):
        assert score_recovery(regime, hidden, seeds=range(20)).f1 >= bar


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda path: path.stem)
def test_steps_and_edges_of_real_exports_are_recovered(truth: Path) -> None:
    steps = json.loads(truth.read_text(encoding="utf-8"))["steps"]
    names = {step["step"] for step in steps}
    for path in sorted(EXPORTS.glob(f"{truth.stem}.*")):
        found = {step.id: step.followed for trace in read_otel(path) for step in trace.steps}
        assert names <= found.keys(), path.name
        assert contract(found, names) == {(each, step["step"]) for step in steps for each in step["predecessors"]}


def contract(followed: Mapping[str, Sequence[str]], names: Set[str]) -> set[tuple[str, str]]:
    """The edges between these steps, also through steps and segments that are not among them."""
    edges: set[tuple[str, str]] = set()
    for target in names:
        waiting, seen = list(followed[target]), set()
        while waiting:
            source = waiting.pop()
            span_id = source.partition("#")[0]
            if span_id in names:
                edges |= {(span_id, target)} - {(target, target)}
            elif source not in seen:
                waiting += followed[source]
            seen.add(source)
    return edges


def test_the_steps_of_logfire_have_their_texts() -> None:
    (trace,) = read_otel(EXPORTS / "openai_agents_logfire.handoffs.sdk.jsonl")
    billing, indexer = (next(step for step in trace.steps if step.node_id == name) for name in ("billing", "indexer"))
    assert indexer.input.text == "index?"
    assert indexer.output.text is not None
    assert indexer.output.text.startswith("The diesel index stood at 1.91")
    assert [(call.name, call.arguments, call.result) for call in billing.tool_calls] == [
        ("ask_indexer", {"input": "index?"}, indexer.output.text)
    ]
    assert "billing#instruction" in (billing.surface_reads or {})


def test_agents_have_the_messages_that_autogens_runtime_delivered() -> None:
    (trace,) = read_otel(EXPORTS / "autogen_native.graph_join.sdk.jsonl")
    planner, joiner = (next(step for step in trace.steps if step.node_id == name) for name in ("planner", "joiner"))
    assert (planner.input.text, planner.output.text) == ("Do the work", "The plan: two halves")
    assert "left half done by me" in str(joiner.input.data)
    assert "right half done by me" in str(joiner.input.data)
    assert planner.usage is not None
    assert (planner.usage.input_tokens, planner.usage.output_tokens) == (6, 4)
