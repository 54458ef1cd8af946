"""Evaluation callbacks of AgentOptimizer as observers: functions that are called around the evaluations of a run.

    class Report:
        def after_evaluate_case(self, ctx, args):
            print(args.result.eval_id, args.result.row.scores)

Callbacks are registered in trpc-agent's `Callbacks`, or are methods of an object with the names of POINTS. They are
called as `callback(ctx, args)` and may be async. `ctx` is a dictionary with `run_id`, `round` and `phase`; what one of
them returns as `CallbackResult(context=...)` is in `ctx["context"]` of the later ones of the same evaluation. `args`
have the fields that trpc-agent documents; `result.row` is the row of a case.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

from promptiter.errors import ArgumentTypeError
from promptiter.evaluation.result import CaseRow
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

MISSING_POINTS = ("before_inference_case", "before_evaluate_case", "before_evaluate_set")
"""The points of AgentEvaluator that a run does not have."""

Hooks: TypeAlias = Mapping[str, Sequence[Callable[..., Any]]]


def as_observers(callbacks: Any) -> tuple[Observer, ...]:
    """Observers for callbacks: a `Callbacks`, an object with some of the POINTS, an observer, or a sequence of them."""
    given = () if callbacks is None else callbacks if isinstance(callbacks, Sequence) else (callbacks,)
    return tuple(map(_as_observer, given))


@dataclass(slots=True)
class _OpenEvaluation:
    """An evaluation in progress, with the contexts of its two phases, which trpc-agent keeps apart."""

    request: SimpleNamespace
    inference: dict[str, Any]
    scoring: dict[str, Any]
    results: list[SimpleNamespace] = field(default_factory=list)


class EvaluationCallbacks:
    """An observer that calls the functions that are registered for each point."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._open: dict[int, _OpenEvaluation] = {}

    async def observe(self, event: Event) -> None:
        payload = event.payload
        if isinstance(payload, EvaluationStarted):
            await self._begin(payload, {"run_id": event.run_id, "round": event.round, "phase": event.phase})
        elif isinstance(payload, CaseFinished) and (found := self._open.get(payload.evaluation)) is not None:
            await self._finish_case(found, payload.row)
        elif isinstance(payload, EvaluationFinished):
            found = self._open.pop(payload.evaluation, None)
            if found is not None:
                await self._finish(found)

    async def _begin(self, started: EvaluationStarted, known: dict[str, Any]) -> None:
        request = SimpleNamespace(
            app_name="", eval_set_id=started.eval_set_id, eval_case_ids=None, inference_results=[]
        )
        found = self._open[started.evaluation] = _OpenEvaluation(request, dict(known), dict(known))
        await self._call("before_inference_set", found.inference, request=request)

    async def _finish_case(self, found: _OpenEvaluation, row: CaseRow) -> None:
        result = SimpleNamespace(
            eval_id=row.case_id,
            eval_case_id=row.case_id,
            eval_set_id=found.request.eval_set_id,
            run_id=row.repeat,
            error_message=None if row.error is None else str(row.error),
            row=row,
        )
        found.results.append(result)
        found.request.inference_results.append(result)
        given = {"request": found.request, "result": result, "error": None}
        await self._call("after_inference_case", dict(found.inference), **given)
        await self._call("after_evaluate_case", dict(found.scoring), **given, inference_result=result)

    async def _finish(self, found: _OpenEvaluation) -> None:
        given = {"request": found.request, "error": None}
        await self._call("after_inference_set", found.inference, **given, results=found.results)
        whole = SimpleNamespace(eval_set_id=found.request.eval_set_id, eval_case_results=found.results)
        await self._call("after_evaluate_set", found.scoring, **given, result=whole)

    async def _call(self, point: str, context: dict[str, Any], **args: Any) -> None:
        for hook in self._hooks.get(point, ()):
            answer = hook(context, SimpleNamespace(**args))
            if inspect.isawaitable(answer):
                answer = await answer
            if (given_context := getattr(answer, "context", None)) is not None:
                context["context"] = given_context


def _as_observer(callbacks: object) -> Observer:
    if has_method(callbacks, OBSERVER.method):
        check_part(callbacks, OBSERVER)
        return callbacks  # type: ignore[return-value]
    hooks = _find_hooks(callbacks)
    if missing := [name for name in MISSING_POINTS if hooks.get(name)]:
        raise ArgumentTypeError(
            f"callbacks: {', '.join(missing)} cannot be called here, because a case is recorded once it is run and "
            f"scored; use {', '.join(POINTS)}"
        )
    if not any(hooks.values()):
        raise ArgumentTypeError(
            f"callbacks is {shorten(callbacks)}; give an observer, or an object with some of {', '.join(POINTS)}"
        )
    return EvaluationCallbacks(hooks)


def _find_hooks(callbacks: Any) -> dict[str, list[Callable[..., Any]]]:
    """The functions of a `Callbacks`, or the methods of another object, by point."""
    if callable(getattr(callbacks, "get_hooks", None)):
        return {str(each.value): [hook for _, hook in callbacks.get_hooks(each)] for each in _list_points(callbacks)}
    methods = {name: getattr(callbacks, name, None) for name in (*POINTS, *MISSING_POINTS)}
    return {name: [method] for name, method in methods.items() if callable(method)}


def _list_points(callbacks: object) -> Iterable[Any]:
    """The `CallbackPoint`s of a `Callbacks`. They are in the module of its class, which is not imported for that."""
    modules = (sys.modules.get(kind.__module__) for kind in type(callbacks).__mro__)
    points: Iterable[Any] = next((found for each in modules if (found := getattr(each, "CallbackPoint", None))), ())
    return points
