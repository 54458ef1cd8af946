"""Evaluation callbacks of AgentOptimizer as observers: functions that are called around the evaluations of a run.

    class Report:
        def after_evaluate_case(self, context, args):
            print(args.eval_case_id, args.row.scores)

A callback is called as `callback(context, args)`; it may be async. `context` has the run id and the round, `args` what
the evaluation is about: `eval_set_id`, and `eval_case_id` with its `row` where there is one case.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from promptiter.errors import ArgumentTypeError
from promptiter.runlog.events import Event, Observer
from promptiter.runlog.payloads import CaseFinished, EvaluationFinished, EvaluationStarted
from promptiter.stages.roles import OBSERVER, check_part, has_method
from promptiter.wording import shorten

POINTS = (
    "before_inference_set",
    "after_inference_case",
    "after_evaluate_case",
    "after_inference_set",
    "after_evaluate_set",
)
"""The points at which callbacks are called. A case is recorded once it is run and scored, so it has no earlier ones."""

_MISSING = ("before_inference_case", "before_evaluate_case", "before_evaluate_set")


def as_observers(callbacks: Any) -> tuple[Observer, ...]:
    """Observers for callbacks: one object or a sequence of them, each with some of the POINTS, or an observer."""
    given = () if callbacks is None else callbacks if isinstance(callbacks, Sequence) else (callbacks,)
    return tuple(map(_as_observer, given))


class EvaluationCallbacks:
    """An observer that calls the methods of one object."""

    def __init__(self, callbacks: object) -> None:
        self.callbacks = callbacks
        self._eval_sets: dict[int, str] = {}

    async def observe(self, event: Event) -> None:
        payload = event.payload
        context = SimpleNamespace(run_id=event.run_id, round=event.round, phase=event.phase)
        if isinstance(payload, EvaluationStarted):
            self._eval_sets[payload.evaluation] = payload.eval_set_id
            await self._call(("before_inference_set",), context, eval_set_id=payload.eval_set_id, cases=payload.cases)
        elif isinstance(payload, CaseFinished):
            eval_set_id = self._eval_sets.get(payload.evaluation, "")
            await self._call(
                ("after_inference_case", "after_evaluate_case"),
                context,
                eval_set_id=eval_set_id,
                eval_case_id=payload.row.case_id,
                row=payload.row,
            )
        elif isinstance(payload, EvaluationFinished):
            eval_set_id = self._eval_sets.pop(payload.evaluation, "")
            await self._call(("after_inference_set", "after_evaluate_set"), context, eval_set_id=eval_set_id)

    async def _call(self, points: Sequence[str], context: SimpleNamespace, **args: Any) -> None:
        for point in points:
            callback = getattr(self.callbacks, point, None)
            if callback is not None:
                answer = callback(context, SimpleNamespace(**args))
                if inspect.isawaitable(answer):
                    await answer


def _as_observer(callbacks: object) -> Observer:
    if has_method(callbacks, OBSERVER.method):
        check_part(callbacks, OBSERVER)
        return callbacks  # type: ignore[return-value]
    if missing := [name for name in _MISSING if hasattr(callbacks, name)]:
        raise ArgumentTypeError(
            f"callbacks: {missing[0]} is not called here, because a case is recorded once it is run and scored; "
            f"use {', '.join(POINTS)}"
        )
    if not any(has_method(callbacks, name) for name in POINTS):
        raise ArgumentTypeError(
            f"callbacks is {shorten(callbacks)}; give an observer, or an object with some of {', '.join(POINTS)}"
        )
    return EvaluationCallbacks(callbacks)
