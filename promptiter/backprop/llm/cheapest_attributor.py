"""CheapestAttributor: attributes each failed trace in one call or by a walk, whichever is expected to cost less.

The estimate assumes that a walk goes straight to the fault: a step counts with the share of possible faults for which
it would be asked. The whole trace is therefore shown in one call only if that is cheaper than the best walk.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from promptiter.backprop.llm.attributor import LLMAttributor, build_failure
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.trace_prompt import TracePrompt
from promptiter.backprop.llm.truncation import count_prompt_tokens
from promptiter.backprop.propagate import CONCURRENCY, StepwiseAttributor, TraceView
from promptiter.concurrency import run_together
from promptiter.errors import BadAnswerError, BadRequestError, ModelError
from promptiter.llm.gateway import Gateway
from promptiter.stages.contracts import AttributeRequest, BackwardResult

Attribution: TypeAlias = Literal["walk", "whole_trace"]

ANSWER_TOKENS = 200
"""Expected number of tokens of an answer: a diagnosis and a gradient or two."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionChoice:
    """The method chosen for one trace, and the reason."""

    how: Attribution
    reason: str


class CheapestAttributor:
    """The Attributor that chooses a method for each trace. The choice is a note in the trace's first result.

    A trace is also walked if the model gives no usable answer about it in one call or rejects it as too long. If it has
    no usable answer about any trace, nor in the first walk, the others are not walked.
    """

    def __init__(self, whole: LLMAttributor, backwarder: LLMBackwarder, *, concurrency: int = CONCURRENCY) -> None:
        self.whole = whole
        self.backwarder = backwarder
        self.concurrency = concurrency
        self.stepwise = StepwiseAttributor(backwarder, concurrency=concurrency)

    @property
    def model(self) -> str:
        return self.whole.model

    @property
    def gateway(self) -> Gateway | None:
        return self.whole.gateway

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        """Return the results of the examined steps, the last step first."""
        [results] = await self.attribute_batch([request])
        return results

    async def attribute_batch(self, requests: Sequence[AttributeRequest]) -> list[list[BackwardResult]]:
        """Return the results of each trace. Traces that are asked about as a whole share prompts."""
        choices = [self.choose(request, together=len(requests)) for request in requests]
        whole = [request for request, choice in zip(requests, choices, strict=True) if choice.how == "whole_trace"]
        answers = iter(await self.whole.attribute_or_fail(whole)) if whole else iter(())
        given = [next(answers) if choice.how == "whole_trace" else None for choice in choices]
        rows = list(zip(requests, choices, given, strict=True))
        if len(rows) > 1 and all(isinstance(answer, BadAnswerError) for answer in given):
            first = await self._finish(*rows.pop(0))
            if first and all(result.error for result in first):
                others = [request for request, *_ in rows]
                return [first, *([replace(first[0], step_id=each.trace.steps[-1].id)] for each in others)]
            return [first, *await run_together(self._finish(*row) for row in rows)]
        return await run_together(self._finish(*row) for row in rows)

    async def _finish(
        self, request: AttributeRequest, choice: AttributionChoice, answer: list[BackwardResult] | ModelError | None
    ) -> list[BackwardResult]:
        """The results with a note. A trace is walked if that was chosen, or if the model's answer could not be used."""
        logger.debug("case %s: %s", request.case_loss.case_id, choice.reason)
        if answer is None:
            return _add_note(await self.stepwise.attribute(request), choice.reason)
        if isinstance(answer, BadAnswerError | BadRequestError):
            note = f"walked: the model gave no usable answer about the whole trace ({type(answer).__name__})"
            return _add_note(await self.stepwise.attribute(request), note)
        if isinstance(answer, ModelError):
            return [build_failure(answer, request)]
        return _add_note(answer, choice.reason)

    def choose(self, request: AttributeRequest, *, together: int = 1) -> AttributionChoice:
        """Choose the cheaper method for one trace; traces that are asked about `together` share rules and surfaces.

        Calls no model; equal requests give equal choices.
        """
        view = TraceView(request)
        shown = TracePrompt.of(view)
        whole = self.whole.estimate_tokens(request, shown, together=together)
        if whole is None:
            most = self.whole.max_prompt_tokens
            return AttributionChoice(how="walk", reason=f"walked: the whole trace does not fit into {most:,} tokens")
        whole += ANSWER_TOKENS
        walk, calls = self._estimate_walk(view)
        if whole < walk:
            reason = f"whole trace: {whole:,} tokens expected, {walk:,} in {calls:.1f} calls for a walk"
            return AttributionChoice(how="whole_trace", reason=reason)
        reason = f"walked: {walk:,} tokens expected in {calls:.1f} calls, {whole:,} for the whole trace"
        return AttributionChoice(how="walk", reason=reason)

    def _estimate_walk(self, view: TraceView) -> tuple[int, float]:
        """Tokens and calls of a walk straight to the fault, averaged over the steps that may be at fault."""
        reports = [packet for packets in view.losses.values() for packet in packets]
        tokens = calls = 0.0
        for step_id, probability in _estimate_ask_probabilities(view).items():
            step_request = view.build_request(view.steps[step_id], list(reports))
            prompt = count_prompt_tokens(message.content for message in self.backwarder.render_prompt(step_request))
            tokens += probability * (prompt + ANSWER_TOKENS)
            calls += probability
        return round(tokens), calls


def _estimate_ask_probabilities(view: TraceView) -> dict[str, float]:
    """The probability that each step is asked, if the fault is equally likely at every blamable step.

    A step is asked if the fault is at the step or upstream of it.
    """
    before: dict[str, int] = {}
    bit = 1
    for step in view.request.trace.steps:
        if step.id not in view.predecessors:
            continue
        faults = 0
        for source in view.predecessors[step.id]:
            faults |= before[source.id]
        if view.blamable[step.id]:
            faults |= bit
            bit <<= 1
        before[step.id] = faults
    possible = bit.bit_length() - 1
    return {
        step_id: faults.bit_count() / possible
        for step_id, faults in before.items()
        if possible and view.is_asked(step_id)
    }


def _add_note(results: list[BackwardResult], note: str) -> list[BackwardResult]:
    return [replace(results[0], note=note), *results[1:]] if results else results
