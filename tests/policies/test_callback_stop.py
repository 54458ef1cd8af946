from __future__ import annotations

from typing import Any

import pytest

from promptiter.errors import SetupError
from promptiter.policies.callback_stop import CallbackStop
from promptiter.policies.stop_decision import CONTINUE
from promptiter.policies.stopping import MaxRounds, Progress


class Breached:
    label = "slo_breach"

    def __init__(self) -> None:
        self.states: list[Any] = []

    def __call__(self, gepa_state: Any = None) -> bool:
        self.states.append(gepa_state)
        return True


def is_night(_: Any) -> bool:
    return False


def test_the_label_of_a_function_is_the_stop_reason() -> None:
    decision = CallbackStop.of(Breached()).decide(Progress())
    assert (decision.reason, decision.text) == ("slo_breach", "the stopper Breached asked for it")


def test_a_function_without_a_label_completes_the_search() -> None:
    assert CallbackStop.of(lambda _: True).decide(Progress()).reason == "completed"
    assert CallbackStop.of(is_night).decide(Progress()) == CONTINUE


def test_stoppers_compose_with_other_policies() -> None:
    both, either = CallbackStop.of(Breached()) & MaxRounds(2), CallbackStop.of(Breached()) | MaxRounds(2)
    assert both.decide(Progress(round=1)) == CONTINUE
    assert [each.kind for each in both.decide(Progress(round=2)).reasons] == ["max_rounds", "slo_breach"]
    assert either.decide(Progress(round=1)).reason == "slo_breach"


def test_a_search_calls_it_with_its_own_state() -> None:
    breached = Breached()
    stop = CallbackStop.of(breached)
    assert stop("state of gepa")
    assert stop.reason == "slo_breach"
    assert breached.states == ["state of gepa"]


def test_it_reads_like_the_code_that_creates_it() -> None:
    assert repr(CallbackStop.of(is_night)) == "CallbackStop(is_night, label='completed')"


def test_something_else_than_a_function_is_refused() -> None:
    with pytest.raises(SetupError, match="a stopper is 'night'; give a function"):
        CallbackStop.of("night")  # type: ignore[arg-type]


def test_an_async_function_is_refused_because_a_coroutine_is_always_true() -> None:
    async def keeps_going(_: Any) -> bool:
        return False

    with pytest.raises(SetupError, match="the stopper keeps_going is async; give a function"):
        CallbackStop.of(keeps_going)
