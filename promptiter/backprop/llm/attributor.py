"""LLMAttributor: a model reads whole failed traces, several in one call, and blames surfaces at steps.

It gives the same results as the backward walk, a BackwardResult for each blamed step, at the price of one call or less.
There are no packets, because blame does not travel from step to step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from promptiter.backprop.llm.model_stage import ModelStage
from promptiter.backprop.llm.prompts import MIN_PROMPT_TOKENS
from promptiter.backprop.llm.replies import BlameAnswer, BlameEntry, build_answer_adapter, build_gradient, resolve_id
from promptiter.backprop.llm.reports import CitedReports, Report, cite_reports
from promptiter.backprop.llm.shown_run import MOST_STEPS, ShownRun
from promptiter.backprop.llm.trace_prompt import RULE_TOKENS, TracePrompt
from promptiter.backprop.llm.truncation import count_prompt_tokens
from promptiter.backprop.propagate import TraceView
from promptiter.concurrency import run_together
from promptiter.errors import AccessDeniedError, BadAnswerError, BadRequestError, ModelError, ModelNotFoundError
from promptiter.llm.gateway import current_gateway
from promptiter.llm.messages import Message, Role
from promptiter.stages.contracts import AttributeRequest, BackwardResult, SurfaceGradient

MOST_RUNS = 12
"""Maximum number of traces in one prompt: with more, models become less careful with each of them."""

BATCH_TOKENS = 16_000
"""Maximum number of tokens of a prompt with several traces."""

CUT_SURFACE = 6_000
"""A surface of more tokens is cut to this number if that makes several traces fit into one prompt."""

ANSWER_TOKENS = 400
"""Room for the answer about one trace, in tokens."""

UNKNOWN_CONTEXT = 32_000
"""The assumed context size of a model, in tokens, if it is unknown."""


MOST_UNUSABLE = 2
"""A model that has given no usable answer is given up after this number of traces that it was asked about alone."""


class LLMAttributor(ModelStage[AttributeRequest]):
    """Calls a model about failed traces, some at a time. With a custom `render` each trace is asked about alone.

    A custom prompt may also name steps and surfaces by their ids.

    Without `max_prompt_tokens` a prompt may fill three quarters of the model's context as litellm reports it, because
    tokens are estimated. A longer trace is cut; CheapestAttributor walks it instead.
    """

    role: ClassVar[Role] = "backwarder"

    @property
    def max_prompt_tokens(self) -> int:
        """The configured limit, or what fits the model's context."""
        if self._max_prompt_tokens is not None:
            return self._max_prompt_tokens
        catalog = (self.gateway or current_gateway()).pool.catalog
        context = catalog.context_tokens(self.model) or UNKNOWN_CONTEXT
        return max(MIN_PROMPT_TOKENS, context * 3 // 4)

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        """Return the results of blamed steps and of steps with losses, the last step first.

        Unknown ids in the answer are counted in the first result. Raises a ModelError if there is no usable answer even
        after repair.
        """
        [results] = await self.attribute_or_fail([request])
        if isinstance(results, ModelError):
            raise results
        return results

    async def attribute_batch(self, requests: Sequence[AttributeRequest]) -> list[list[BackwardResult]]:
        """Return the results of each trace. Traces that fit are packed into one prompt, which pays for the rules once.

        A trace without a usable answer, even on its own, has one result with the error.
        """
        answers = await self.attribute_or_fail(requests)
        return [
            [build_failure(answer, request)] if isinstance(answer, ModelError) else answer
            for request, answer in zip(requests, answers, strict=True)
        ]

    async def attribute_or_fail(self, requests: Sequence[AttributeRequest]) -> list[list[BackwardResult] | ModelError]:
        """Return the results of each trace, or the error. Traces without a usable answer together are asked alone.

        As long as no answer could be used, that is one trace at a time, and after MOST_UNUSABLE the others keep their
        error: a model that cannot answer so is not asked about each of them.
        """
        batches = self._pack([TraceView(request) for request in requests])
        answers = await run_together(self._attribute_views(batch) for batch in batches)
        found = [each for answer in answers for each in answer]
        views = [view for batch in batches for view in batch]
        is_shared = [len(batch) > 1 for batch in batches for _ in batch]
        alone = [number for number, each in enumerate(found) if is_shared[number] and _may_fit_alone(each)]
        unusable = 0
        while alone and not any(isinstance(each, list) for each in found):
            if unusable == MOST_UNUSABLE:
                return found
            number = alone.pop(0)
            [found[number]] = await self._attribute_views([views[number]])
            unusable += isinstance(found[number], BadAnswerError)
        others = await run_together(self._attribute_views([views[number]]) for number in alone)
        for number, [each] in zip(alone, others, strict=True):
            found[number] = each
        return found

    async def _attribute_views(self, views: Sequence[TraceView]) -> list[list[BackwardResult] | ModelError]:
        """Ask about these traces in one prompt."""
        shown, [first, *_] = TracePrompt.of(*views), views
        if not shown.surfaces:
            return [[] for _ in views]
        shape = build_answer_adapter(
            tuple(shown.surfaces),
            steps=tuple(alias for run in shown.runs for alias in run.blamable_steps),
            reports=tuple(alias for run in shown.runs for alias in run.reports),
        )
        prompt, room = self.render_prompt(first.request, shown), ANSWER_TOKENS * (len(views) + 1)
        try:
            answer = await self.ask(shape, prompt, first.request, node_id="", answer_tokens=room)
        except ModelError as error:
            return [error for _ in views]
        return [*_build_results(answer, shown)]

    def _pack(self, views: Sequence[TraceView]) -> list[list[TraceView]]:
        """Pack traces in their order into batches that fit into one prompt."""
        if self.render is not None:
            return [[view] for view in views]
        batches: list[list[TraceView]] = []
        surfaces: dict[str, int] = {}
        used = steps = 0
        for view in views:
            run = TracePrompt.of(view)
            of_surfaces, of_run = _measure_cut(run)
            new = sum(size for name, size in of_surfaces.items() if name not in surfaces)
            count = len(run.runs[0].steps)
            is_full = used + new + of_run > self._batch_tokens or steps + count > MOST_STEPS
            if not batches or is_full or len(batches[-1]) == MOST_RUNS:
                batches.append([])
                surfaces, used, steps = {}, RULE_TOKENS, 0
                new = sum(of_surfaces.values())
            batches[-1].append(view)
            surfaces |= of_surfaces
            used, steps = used + new + of_run, steps + count
        return batches

    @property
    def _batch_tokens(self) -> int:
        return min(self.max_prompt_tokens, BATCH_TOKENS)

    def render_prompt(self, request: AttributeRequest, shown: TracePrompt) -> tuple[Message, ...]:
        """The messages to the model. Long surfaces are cut if the prompt is too long for one with several traces."""
        if self.render:
            return self.render(request)
        most = self.max_prompt_tokens if len(shown.runs) == 1 else self._batch_tokens
        surfaces, of_runs = _measure_cut(shown)
        cut = RULE_TOKENS + sum(surfaces.values()) + of_runs
        is_cut = shown.tokens > most and cut <= self._batch_tokens
        return shown.render(limit=cut if is_cut else self.max_prompt_tokens)

    def estimate_tokens(self, request: AttributeRequest, shown: TracePrompt, *, together: int) -> int | None:
        """The number of tokens of the prompt for one trace; None if it does not fit.

        Traces that are asked about `together` share the rules and surfaces, and long surfaces may then be cut.
        """
        if self.render:
            tokens = count_prompt_tokens(each.content for each in self.render(request))
            return tokens if tokens <= self.max_prompt_tokens else None
        if shown.runs[0].left_out:
            return None
        surfaces, of_run = shown.measure() if together == 1 else _measure_cut(shown)
        once = RULE_TOKENS + sum(surfaces.values())
        if once + of_run > self.max_prompt_tokens:
            return None
        fitting = max(1, (self._batch_tokens - once) // of_run)
        return of_run + once // min(together, fitting, MOST_RUNS)


def _may_fit_alone(answer: list[BackwardResult] | ModelError) -> bool:
    """Whether a trace of a prompt with several may get a usable answer on its own."""
    is_refused = isinstance(answer, AccessDeniedError | ModelNotFoundError)
    return isinstance(answer, BadAnswerError | BadRequestError) and not is_refused


def _measure_cut(shown: TracePrompt) -> tuple[dict[str, int], int]:
    """The numbers of tokens of the surfaces, cut where they are long, and of everything else but the rules."""
    surfaces, others = shown.measure()
    return {name: min(size, CUT_SURFACE) for name, size in surfaces.items()}, others


def build_failure(error: ModelError, request: AttributeRequest) -> BackwardResult:
    """The result of a trace that could not be attributed."""
    return BackwardResult(step_id=request.trace.steps[-1].id, error=f"{type(error).__name__}: {error}")


def _build_results(answer: BlameAnswer, shown: TracePrompt) -> list[list[BackwardResult]]:
    """The results of each run. What could not be located is counted in the first result of the first run.

    That result also has the diagnosis, if the answer blames nothing.
    """
    blames, diagnosis = answer.gradients, "" if answer.gradients else answer.diagnosis
    places = [_locate(blame, shown) for blame in blames]
    results = []
    for number, run in enumerate(shown.runs):
        mine = [(blame, place) for blame, place in zip(blames, places, strict=True) if place and place[0] is run]
        results.append(_build_run_results([(blame, surface, step) for blame, (_, surface, step) in mine], run))
        if number == 0 and results[0]:
            results[0][0] = replace(results[0][0], dropped=places.count(None), diagnosis=diagnosis)
    return results


def _build_run_results(blames: Sequence[tuple[BlameEntry, str, str]], run: ShownRun) -> list[BackwardResult]:
    view, reached = run.view, _find_reached_reports(run)
    gradients: defaultdict[str, list[SurfaceGradient]] = defaultdict(list)
    for blame, surface_id, step_id in blames:
        reports = cite_reports(blame.cited, run.reports, otherwise=reached[step_id])
        cited = CitedReports.of(reports)
        gradient = build_gradient(blame, (surface_id, step_id), view.request.case_loss, cited=cited)
        gradients[step_id].append(gradient)
    reported = {step.id for step in run.steps.values() if step.id in view.losses} | gradients.keys()
    order = [step for step in reversed(view.request.trace.steps) if step.id in reported]
    return [BackwardResult(step_id=step.id, gradients=tuple(gradients[step.id])) for step in order]


def _locate(blame: BlameEntry, shown: TracePrompt) -> tuple[ShownRun, str, str] | None:
    """Find the run, the surface and the step of an entry; None if that step has no such surface.

    A blank step means the last that read the surface, in the run whose findings the entry cites, or in the only run. A
    blank surface means the only one of the step.
    """
    for run in shown.runs:
        steps = dict(run.steps) | ({step.id: step for step in run.steps.values()} if len(shown.runs) == 1 else {})
        named = steps.get(blame.step) or steps.get(blame.step.upper())
        is_cited = len(shown.runs) == 1 or any(alias in run.reports for alias in blame.cited)
        candidates = [named] if named else list(run.steps.values()) if not blame.step and is_cited else []
        for step in reversed(candidates):
            blamable = run.view.blamable[step.id]
            ids = {name: name for name in blamable}
            ids |= {alias: name for alias, name in shown.surfaces.items() if name in blamable}
            surface_id = resolve_id(blame.of, ids)
            if surface_id is not None:
                return run, surface_id, step.id
    return None


def _find_reached_reports(run: ShownRun) -> dict[str, tuple[Report, ...]]:
    """The reports from which blame would reach each step of the walk: those at the step or downstream of it."""
    view, reports = run.view, list(run.reports.values())
    reached: defaultdict[str, set[int]] = defaultdict(set)
    for number, report in enumerate(reports):
        for step_id in report.step_ids:
            reached[step_id].add(number)
    for step in reversed(view.request.trace.steps):
        for source in view.predecessors.get(step.id, ()):
            reached[source.id] |= reached[step.id]
    return {step_id: tuple(reports[number] for number in sorted(reached[step_id])) for step_id in view.predecessors}
