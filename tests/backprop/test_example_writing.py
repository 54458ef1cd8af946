from __future__ import annotations

from promptiter.backprop.backpropagation import backpropagate
from promptiter.backprop.example_pool import ExamplePool
from promptiter.backprop.example_writing import ExampleWriter
from promptiter.backprop.judged_traces import JudgedTrace
from promptiter.stages.losses import Loss
from promptiter.structure import Limits, Node, StructureSnapshot, Surface
from tests.backprop.test_example_pool import record, step
from traces.model import Json

OWN: list[Json] = [{"role": "user", "content": "mine"}, {"role": "assistant", "content": "yours"}]


def writer(count: int = 4, **options: int) -> ExampleWriter:
    pool = ExamplePool()
    pool.add("n", [step(f"case{number}", passed=number % 2 == 0) for number in range(count)])
    return ExampleWriter(pool=pool, **options)  # type: ignore[arg-type]


def surface(value: Json = None, **limits: int) -> Surface:
    return Surface(node_id="n", type="examples", value=value or [], limits=Limits(**limits))  # type: ignore[arg-type]


def test_a_patch_says_where_its_examples_come_from() -> None:
    patch = writer().write(surface())
    assert patch is not None
    assert patch.reason == "4 examples of train cases: 2 from passing steps, 2 from references"
    assert patch.evidence.cases == ("case0", "case1", "case2", "case3")
    assert len(patch.value) == 8


def test_limits_of_the_surface_and_of_the_search_hold() -> None:
    for found in (writer().write(surface(max_examples=5)), writer(most=2).write(surface())):
        assert found is not None
        assert len(found.value) == 4
    assert writer().write(surface(max_examples=1)) is None


def test_the_users_own_examples_stay_in_front() -> None:
    patch = writer(2).write(surface(OWN))
    assert patch is not None
    assert patch.value[:2] == OWN
    assert len(patch.value) == 6
    limited = writer().write(surface(OWN, max_examples=4))
    assert limited is not None
    assert len(limited.value) == 4


def test_rejected_examples_are_not_written_again() -> None:
    first = writer().write(surface())
    assert first is not None
    second = writer().write(surface(), rejected=[first.value])
    assert second is not None
    assert second.value != first.value
    only = writer(1).write(surface())
    assert only is not None
    assert writer(1).write(surface(), rejected=[only.value]) is None


def test_examples_of_excluded_cases_are_not_shown() -> None:
    found = ExampleWriter(pool=writer().pool, without={"case0", "case1"}).write(surface())
    assert found is not None
    assert found.evidence.cases == ("case2", "case3")


async def test_backpropagation_selects_examples_from_the_traces_it_is_given() -> None:
    structure = StructureSnapshot(nodes=(Node(id="n", kind="llm"),), surfaces=(surface(),))
    wrong = Loss(metric="exact_match", text="wrong", expected="reference")
    traces = [
        JudgedTrace(case_id="good", trace=record("one", "fine"), input="one"),
        JudgedTrace(case_id="bad", trace=record("two", "no"), input="two", losses=(wrong,), expected="yes"),
    ]
    found = await backpropagate(traces, structure=structure, targets=["n#examples"])
    [patch] = found.patches
    assert sorted(message["content"] for message in patch.value) == ["fine", "one", "two", "yes"]
