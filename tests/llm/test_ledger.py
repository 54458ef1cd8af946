from __future__ import annotations

import random
import threading

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.llm.ledger import FROM_CACHE, Ledger, LedgerEntry, LedgerSnapshot, Spending
from promptiter.llm.messages import Role
from traces import Usage

ROLES = ("agent", "judge", "optimizer")
USAGE = Usage(input_tokens=100, output_tokens=10, cached_input_tokens=40, cost_usd=0.1)

calls = st.fixed_dictionaries(
    {
        "role": st.sampled_from(ROLES),
        "model": st.sampled_from(["small", "large"]),
        "node_id": st.sampled_from(["", "planner"]),
        "usage": st.none()
        | st.builds(
            Usage,
            input_tokens=st.none() | st.integers(0, 1000),
            output_tokens=st.none() | st.integers(0, 1000),
            cost_usd=st.none() | st.floats(0, 2),
        ),
        "seconds": st.floats(0, 100),
        "attempts": st.integers(1, 4),
        "from_cache": st.booleans(),
    }
)


def ledger_of(many: list[dict[str, object]]) -> Ledger:
    ledger = Ledger()
    for call in many:
        ledger.count(entry(**call))  # type: ignore[arg-type]
    return ledger


def entry(
    role: Role,
    model: str,
    usage: Usage | None = None,
    *,
    node_id: str = "",
    seconds: float = 0.0,
    attempts: int = 1,
    from_cache: bool = False,
) -> LedgerEntry:
    spent = FROM_CACHE if from_cache else Spending.of_call(usage or Usage(), seconds=seconds, attempts=attempts)
    return LedgerEntry(role=role, model=model, node_id=node_id, spent=spent)


def test_a_call_is_counted_by_role_model_and_node() -> None:
    ledger = Ledger()
    ledger.count(entry("judge", "large", usage=USAGE, seconds=1.5, attempts=3))
    ledger.count(entry("agent", "small", node_id="planner", usage=USAGE, seconds=0.5))
    ledger.count(entry("agent", "large", node_id="writer", usage=USAGE, seconds=0.5))
    snapshot = ledger.snapshot()
    assert [(each.role, each.model, each.node_id) for each in snapshot.entries] == [
        ("agent", "large", "writer"),
        ("agent", "small", "planner"),
        ("judge", "large", ""),
    ]
    assert snapshot.total == Spending(
        calls=3,
        attempts=5,
        input_tokens=300,
        output_tokens=30,
        cached_input_tokens=120,
        cost_usd=0.3,
        seconds=2.5,
    )
    assert (snapshot.total.tokens, snapshot.total.retries) == (330, 2)
    assert {role: spent.calls for role, spent in snapshot.by_role().items()} == {"agent": 2, "judge": 1}
    assert {model: spent.calls for model, spent in snapshot.by_model().items()} == {"large": 2, "small": 1}
    assert {node: spent.calls for node, spent in snapshot.by_node().items()} == {"": 1, "planner": 1, "writer": 1}


def test_an_answer_from_the_cache_costs_nothing() -> None:
    ledger = Ledger()
    ledger.count(entry("agent", "small", from_cache=True))
    assert ledger.snapshot().total == Spending(cache_hits=1)
    assert ledger.snapshot().total.cost_usd == 0.0


def test_an_unknown_price_is_unknown_and_counted() -> None:
    ledger = Ledger()
    ledger.count(entry("agent", "own", usage=Usage(input_tokens=5, output_tokens=1)))
    assert ledger.snapshot().total.cost_usd is None
    ledger.count(entry("agent", "small", usage=USAGE))
    assert ledger.snapshot().total.cost_usd == 0.1
    assert ledger.snapshot().total.unpriced_calls == 1
    assert ledger.snapshot().by_model()["own"].cost_usd is None


@pytest.mark.parametrize("cost", [0.0, 0.1, 1e6, 1e300, 1e308])
def test_any_cost_can_be_counted(cost: float) -> None:
    ledger = Ledger()
    ledger.count(LedgerEntry(role="agent", model="small", node_id="", spent=Spending(calls=1, cost_usd=cost)))
    assert ledger.snapshot().total.cost_usd == cost


def test_unknown_tokens_are_counted_as_such() -> None:
    ledger = Ledger()
    ledger.count(entry("agent", "own"))
    ledger.count(entry("agent", "own", usage=Usage(input_tokens=5)))
    assert ledger.snapshot().total.uncounted_calls == 2
    assert ledger.snapshot().total.tokens == 5


def test_the_cost_of_a_stage_is_the_difference_of_two_snapshots() -> None:
    ledger = Ledger()
    ledger.count(entry("agent", "small", usage=USAGE))
    ledger.count(entry("judge", "small", usage=USAGE))
    before = ledger.snapshot()
    ledger.count(entry("agent", "small", usage=Usage(input_tokens=1, output_tokens=1)))
    ledger.count(entry("optimizer", "small", usage=USAGE))
    stage = ledger.snapshot() - before
    assert stage.by_role() == {
        "agent": Spending(calls=1, attempts=1, input_tokens=1, output_tokens=1, cost_usd=None, unpriced_calls=1),
        "optimizer": before.by_role()["judge"],
    }
    assert ledger.snapshot() - ledger.snapshot() == LedgerSnapshot()


@pytest.mark.slow
@given(st.lists(calls, max_size=12), st.lists(calls, max_size=12), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_differences_add_up(
    first: list[dict[str, object]], second: list[dict[str, object]], rng: random.Random
) -> None:
    both = first + second
    whole = ledger_of(both).snapshot()
    rng.shuffle(both)
    assert ledger_of(both).snapshot() == whole
    assert whole - ledger_of(first).snapshot() == ledger_of(second).snapshot()
    assert ledger_of(first).snapshot() + ledger_of(second).snapshot() == whole
    merged = ledger_of(first)
    merged.merge(ledger_of(second).snapshot())
    assert merged.snapshot() == whole
    for parts in (whole.by_role(), whole.by_model(), whole.by_node()):
        assert sum(spent.tokens for spent in parts.values()) == whole.total.tokens


def test_a_snapshot_can_be_written_as_json() -> None:
    ledger = Ledger()
    ledger.count(entry("agent", "own", node_id="planner"))
    [found] = orjson.loads(orjson.dumps(ledger.snapshot()))["entries"]
    assert (found["role"], found["spent"]["calls"], found["spent"]["cost_usd"]) == ("agent", 1, None)


@pytest.mark.slow
def test_threads_lose_no_call() -> None:
    ledger = Ledger()

    def add_many() -> None:
        for _ in range(2000):
            ledger.count(entry("agent", "small", usage=USAGE))

    threads = [threading.Thread(target=add_many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.snapshot().total.calls == 16_000
    assert ledger.snapshot().total.cost_usd == 1600.0


def test_lost_calls_add_up_and_cost_nothing() -> None:
    ledger = Ledger()
    for lost in (1, 2):
        ledger.count(LedgerEntry(role="agent", model="small", node_id="", spent=Spending(lost_calls=lost)))
    before = ledger.snapshot()
    assert before.total == Spending(lost_calls=3)
    ledger.count(entry("agent", "small", usage=USAGE))
    assert (ledger.snapshot() - before).total.lost_calls == 0
    assert ledger.snapshot().total.cost_usd == 0.1


def test_model_calls_are_distinguished_from_tool_calls() -> None:
    ledger = Ledger()
    ledger.count(entry("agent", "small", usage=USAGE))
    ledger.count(entry("agent", "tool:search", usage=Usage(input_tokens=0, output_tokens=0, cost_usd=0.0)))
    assert (ledger.snapshot().total.calls, ledger.snapshot().of_models.calls) == (2, 1)
