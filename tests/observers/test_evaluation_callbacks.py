"""Evaluation callbacks: who is called when, with which context and arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from promptiter.errors import ArgumentTypeError
from promptiter.evaluation.data.case import EvalSet
from promptiter.observers.evaluation_callbacks import MISSING_POINTS, POINTS, as_observers
from tests.worlds import desk
from tests.worlds.desk_stages import engine


class CallbackPoint(Enum):
    """The points of trpc-agent, by their names."""

    BEFORE_INFERENCE_SET = "before_inference_set"
    AFTER_INFERENCE_SET = "after_inference_set"
    BEFORE_INFERENCE_CASE = "before_inference_case"
    AFTER_INFERENCE_CASE = "after_inference_case"
    BEFORE_EVALUATE_SET = "before_evaluate_set"
    AFTER_EVALUATE_SET = "after_evaluate_set"
    BEFORE_EVALUATE_CASE = "before_evaluate_case"
    AFTER_EVALUATE_CASE = "after_evaluate_case"


@dataclass
class CallbackResult:
    context: Any = None


@dataclass
class Callbacks:
    """What users of trpc-agent register functions in."""

    hooks: dict[CallbackPoint, list[tuple[str, Any]]] = field(default_factory=dict)

    def get_hooks(self, point: CallbackPoint) -> list[tuple[str, Any]]:
        return self.hooks.get(point, [])


async def observe(callbacks: object) -> None:
    await engine().run(desk.request(), observers=as_observers(callbacks))


def test_all_points_of_the_evaluator_are_called_or_refused() -> None:
    assert {*POINTS, *MISSING_POINTS} == {each.value for each in CallbackPoint}


async def test_functions_of_callbacks_are_called_with_the_arguments_of_the_evaluator() -> None:
    seen: list[tuple[Any, ...]] = []

    async def begin(ctx: dict[str, Any], args: Any) -> CallbackResult:
        seen.append(("begin", ctx["phase"], args.request.eval_set_id))
        return CallbackResult({"began": ctx["phase"]})

    def end_case(ctx: dict[str, Any], args: Any) -> CallbackResult:
        seen.append(("case", ctx["context"]["began"], args.result.eval_case_id))
        return CallbackResult({"began": "only in this case"})

    def end_scoring(ctx: dict[str, Any], args: Any) -> None:
        seen.append(("scored", ctx.get("context"), args.result.eval_id, args.result.row.passed))

    def end(ctx: dict[str, Any], args: Any) -> None:
        seen.append(("end", ctx["context"]["began"], len(args.results), args.error))

    def end_all(_: dict[str, Any], args: Any) -> None:
        seen.append(("all", args.result.eval_set_id, len(args.result.eval_case_results)))

    functions = {
        CallbackPoint.BEFORE_INFERENCE_SET: begin,
        CallbackPoint.AFTER_INFERENCE_CASE: end_case,
        CallbackPoint.AFTER_EVALUATE_CASE: end_scoring,
        CallbackPoint.AFTER_INFERENCE_SET: end,
        CallbackPoint.AFTER_EVALUATE_SET: end_all,
    }
    await observe(Callbacks({point: [("mine", each)] for point, each in functions.items()}))
    validation = desk.request().validation
    assert isinstance(validation, EvalSet)
    cases = len(validation.cases)
    first = [each for each in seen[: 2 * cases + 3] if each[0] != "case"]
    assert seen[0] == ("begin", "baseline", validation.id)
    assert ("case", "baseline", validation.cases[0].id) in seen
    assert ("scored", None, validation.cases[0].id, False) in first
    assert first[-2:] == [("end", "baseline", cases, None), ("all", validation.id, cases)]


@pytest.mark.parametrize("point", MISSING_POINTS)
def test_a_point_that_a_run_does_not_have_is_refused_by_name(point: str) -> None:
    callbacks = Callbacks({CallbackPoint(point): [("mine", print)], CallbackPoint.AFTER_EVALUATE_SET: [("a", print)]})
    with pytest.raises(ArgumentTypeError, match=f"callbacks: {point} cannot be called here"):
        as_observers(callbacks)
    with pytest.raises(ArgumentTypeError, match=f"callbacks: {point} cannot be called here"):
        as_observers(type("Own", (), {point: print})())


@pytest.mark.parametrize("callbacks", [Callbacks(), object(), [object()]])
def test_callbacks_without_any_point_are_refused(callbacks: object) -> None:
    with pytest.raises(ArgumentTypeError, match="give an observer, or an object with some of before_inference_set"):
        as_observers(callbacks)
