from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.agents.base import Substitute
from promptiter.errors import BudgetEndedError, ModelTimeoutError, RunnerError, SetupError, ToolFailedError
from promptiter.evaluation.data.case import EvalCase, ExpectedToolCall, Scenario, Turn
from promptiter.evaluation.result import CaseRow, Measured
from promptiter.evaluation.score import Finding, Score
from promptiter.evaluation.workers.job_host import HostHandles
from promptiter.evaluation.workers.wire_format import pack, pack_agent, unpack
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message
from promptiter.llm.secret import Secret
from promptiter.profile import Profile
from tests.worlds import small_programs
from traces import ExecutionTrace, Failure, Step, Usage
from traces.model import Snapshot


def send(value: Any) -> Any:
    kept = HostHandles(Gateway())
    return unpack(pack(value, kept), kept)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(st.characters(), max_size=5) | st.integers(), inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$tuple", "$ref", "$", "a"]), inner, max_size=2)
    ),
    max_leaves=12,
)


@given(values)
def test_what_is_read_equals_what_was_written(value: Any) -> None:
    found = send(value)
    assert found == value
    assert repr(found) == repr(value)  # 1 is not True, and a tuple is not a list


def test_nan_and_ranges_are_sent() -> None:
    assert math.isnan(send(math.nan))
    assert send([math.inf, range(2, 9, 3)]) == [math.inf, range(2, 9, 3)]


@given(values)
def test_cases_profiles_and_rows_are_sent_exactly(value: Any) -> None:
    case = EvalCase(
        id="ü\ud83d",
        turns=(Turn(user="a", expected="b", expected_tool_calls=(ExpectedToolCall(name="t", arguments=value),)),),
        scenario=Scenario(starting_prompt="s", plan="p"),
        context=(Message("user", "c"),),
        state={"state": value},
        metadata={"$ref": value},
    )
    profile = Profile(structure_id="s", overrides={"a#instruction": value}, surface_ids=("a#instruction",))
    row = CaseRow(
        case_id="c",
        scores=(Score(metric="m", value=0.1, findings=(Finding(kind="wrong", expected=value),)),),
        error=Failure("E", "m"),
        usage=Usage(input_tokens=3, cost_usd=0.1),
        reads={"a": ("x",), "b": None},
        measured=Measured(duration_s=0.1),
    )
    for each in (case, profile, row, Substitute(step_id="s", output=value)):
        assert send(each) == each
        assert type(send(each)) is type(each)
    assert send(row).measured == row.measured


def test_traces_are_sent_exactly() -> None:
    steps = (
        Step(id="a", node_id="a", input=Snapshot("é"), start_ns=1, end_ns=2),
        Step(id="b", node_id="b", predecessors=("a",), attributes={"x": [1, 2.5]}, error=Failure("E", "m")),
    )
    trace = ExecutionTrace(id="t", steps=steps)
    assert send((trace,)) == (trace,)


class OddError(BudgetEndedError):
    pass


@pytest.mark.parametrize(
    "error",
    [
        BudgetEndedError("spent", cap="max_calls", advice="raise it"),
        ToolFailedError("search", "KeyError: 'x'"),
        ModelTimeoutError("late", retry_after_s=2.5),
        RunnerError("RateLimitError: 429", is_outage=True),
        OddError("odd", cap="max_usd"),
        ValueError("a", 2),
        KeyError("x"),
        FileNotFoundError(2, "No such file", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_are_sent_as_themselves(error: Exception) -> None:
    found = send(error)
    assert isinstance(found, type(error).__mro__[0] if type(error) is not UnicodeDecodeError else UnicodeDecodeError)
    assert (type(found).__name__, str(found)) == (type(error).__name__, str(error))
    assert vars(found) == vars(error)


def test_an_error_of_a_local_class_is_sent_as_its_nearest_base() -> None:
    class LocalError(BudgetEndedError):
        pass

    error = LocalError("mine", cap="x")
    error.handle = object()  # type: ignore[attr-defined]
    found = send(error)
    assert isinstance(found, BudgetEndedError)
    assert (type(found).__name__, str(found), found.cap) == ("LocalError", "mine", "x")
    assert not hasattr(found, "handle")


@dataclass(frozen=True)
class Limit:
    function: Any
    limit: float = 1.0
    derived: float = field(init=False, default=0.0)


def double(number: float, *, add: float = 0) -> float:
    return 2 * number + add


LIMIT = Limit(double)


def test_dataclasses_functions_and_partials_are_built_again() -> None:
    found = send(Limit(partial(double, 2.0, add=1), limit=3.0))
    assert (found.function(), found.limit) == (5.0, 3.0)
    assert send(double) is double
    assert send(Limit) is Limit


def test_an_object_of_a_module_is_sent_by_name_and_read_as_itself() -> None:
    kept = HostHandles(Gateway())
    raw = pack_agent(LIMIT, kept, place="the agent")
    assert orjson.loads(raw) == {"$ref": f"{__name__}:LIMIT"}
    assert unpack(raw, kept) is LIMIT


def test_an_agent_of_a_script_is_sent_as_data_if_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be assigned under `if __name__ == "__main__":`, which the other process does not execute."""
    kept = HostHandles(Gateway())
    script = ModuleType("__main__")
    script.__file__ = __file__
    script.data, script.object = Limit(double, limit=2.0), object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    assert unpack(pack_agent(script.data, kept, place="the agent"), kept) == Limit(double, limit=2.0)
    raw = pack_agent(script.object, kept, place="the agent")
    assert orjson.loads(raw) == {"$ref": "test_wire_format:object"}
    with pytest.raises(SetupError, match=r"it is assigned under `if __name__ == '__main__':`, .*; move it above"):
        unpack(raw, kept)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            Limit(lambda: 1),
            r"Limit\.function cannot be sent to another process: it is <function .*; define it at the t",
        ),
        ({"a": [object()]}, r"dict\['a'\]\[0\] cannot be .*: it is a object, .*; assign it to a name at the top of a "),
    ],
)
def test_what_cannot_be_sent_is_named_with_advice(value: object, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        send(value)


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: Any = []
    for _ in range(600):
        value = [value]
    with pytest.raises(SetupError, match="nest its values less deeply"):
        send(value)


def test_secrets_and_gateways_stay_in_their_process() -> None:
    gateway, other = Gateway(), Gateway()
    kept = HostHandles(gateway)
    secret = Secret("hunter2-hunter2", source="${KEY}")
    raw = pack([secret, gateway, other, gateway.for_run()], kept)
    assert b"hunter2" not in raw
    found = unpack(raw, kept)
    assert found[0] is secret
    assert found[1] is gateway
    assert found[2] is other
    assert found[3] is gateway


async def test_an_agent_with_a_profile_of_its_own_is_sent_whole() -> None:
    two = small_programs.two_prompts
    served = two.with_profile(Profile.of(two.describe(), {"two_prompts#instruction.plan": "Plan."}))
    kept = HostHandles(Gateway())
    for agent in (served, small_programs.ticket):
        back = unpack(pack(agent, kept), kept)
        assert back.describe() == agent.describe()
    assert unpack(pack_agent(two, kept, place="the agent"), kept) is two
