from __future__ import annotations

from collections.abc import Sequence

from promptiter.stages.optimizer import StepExample
from promptiter.structure import Limits, Surface
from tests.offline.rules.test_optimizer import optimize, orders, request_for
from traces.model import Json


def settings(surface: Surface, examples: Sequence[StepExample] = ()) -> list[Json]:
    """All values that are proposed one after the other."""
    tried: list[Json] = []
    while True:
        patch = optimize(request_for("", examples or orders(4), rejected=tried, surface=surface)).patch
        if patch is None:
            return tried
        assert patch.reason
        tried.append(patch.value)


def test_a_parameter_moves_a_step_up_or_down_within_its_limits() -> None:
    top_k = Surface(
        node_id="n", type="parameter", part="top_k", value=3, limits=Limits(kind="integer", minimum=1, maximum=5)
    )
    assert settings(top_k) == [4, 2, 5, 1]
    heat = Surface(
        node_id="n", type="parameter", part="temperature", value=0.5, limits=Limits(kind="number", minimum=0, maximum=1)
    )
    assert settings(heat)[:4] == [0.375, 0.625, 0.25, 0.75]
    rate = Limits(kind="number", minimum=1e-4, maximum=1, scale="log")
    assert settings(Surface(node_id="n", type="parameter", part="rate", value=0.01, limits=rate))[:2] == [
        0.031623,
        0.003162,
    ]
    free = Surface(node_id="n", type="parameter", part="k", value=8, limits=Limits(kind="integer"))
    assert settings(free)[:3] == [12, 4, 16]


def test_the_next_choice_is_tried_first() -> None:
    limits = Limits(kind="choice", choices=("a", "b", "c"))
    assert settings(Surface(node_id="n", type="parameter", part="mode", value="b", limits=limits)) == ["c", "a"]
    switch = Surface(node_id="n", type="parameter", value=True, limits=Limits(kind="boolean", choices=(False, True)))
    assert settings(switch) == [False]
    models = Surface(node_id="n", type="model", value="small", limits=Limits(choices=("small", "large")))
    assert settings(models) == ["large"]
    alone = Surface(node_id="n", type="model", value="small")
    assert optimize(request_for("", orders(4), surface=alone)).reason == "there is no other value to try for n#model"


def test_examples_have_no_other_value() -> None:
    assert settings(Surface(node_id="n", type="examples", value=[])) == []
