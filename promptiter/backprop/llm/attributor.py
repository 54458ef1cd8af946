"""LLMAttributor: a model reads a whole failed trace in one call and blames surfaces at steps.

It gives the same results as the backward walk, a BackwardResult for each blamed step, at the price of one call. There
are no packets, because blame does not travel from step to step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from promptiter.backprop.llm.model_stage import ModelStage
from promptiter.backprop.llm.prompts import MIN_PROMPT_TOKENS
from promptiter.backprop.llm.rendering import collect_findings
from promptiter.backprop.llm.replies import BlameEntry, build_answer_adapter, build_gradient, resolve_id
from promptiter.backprop.llm.trace_prompt import TracePrompt
from promptiter.backprop.llm.truncation import count_prompt_tokens
from promptiter.backprop.propagate import TraceView
from promptiter.llm.gateway import current_gateway
from promptiter.llm.messages import Message, Role
from promptiter.stages.contracts import AttributeRequest, BackwardResult, SurfaceGradient
from promptiter.stages.losses import Loss

UNKNOWN_CONTEXT = 32_000
"""The assumed context size of a model, in tokens, if it is unknown."""


class LLMAttributor(ModelStage[AttributeRequest]):
    """Calls a model once for each failed trace. A custom `render` may also name steps and surfaces by their ids.

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
        shown = TracePrompt.of(TraceView(request))
        if not shown.surfaces:
            return []
        shape = build_answer_adapter(tuple(shown.surfaces), steps=tuple(shown.blamable_steps))
        answer = await self.ask(shape, self.render_prompt(request, shown), request, node_id="")
        return _build_results(answer.gradients, shown)

    def render_prompt(self, request: AttributeRequest, shown: TracePrompt) -> tuple[Message, ...]:
        """The messages to the model."""
        return self.render(request) if self.render else shown.render(limit=self.max_prompt_tokens)

    def count_whole_tokens(self, request: AttributeRequest, shown: TracePrompt) -> int | None:
        """The number of tokens of the prompt before truncation; None if it does not fit."""
        tokens = count_prompt_tokens(each.content for each in self.render(request)) if self.render else shown.tokens
        return tokens if tokens <= self.max_prompt_tokens and not shown.left_out else None


def _build_results(blames: Sequence[BlameEntry], shown: TracePrompt) -> list[BackwardResult]:
    view, reached = shown.view, _find_reached_losses(shown.view)
    gradients: defaultdict[str, list[SurfaceGradient]] = defaultdict(list)
    for blame in blames:
        place = _locate(blame, shown)
        if place is not None:
            step_id, losses = place[1], reached[place[1]]
            gradient = build_gradient(
                blame,
                place,
                view.request.case_loss,
                reports=[(loss.severity, loss.category) for loss in losses],
                findings=collect_findings(losses),
            )
            gradients[step_id].append(gradient)
    reported = {step.id for step in shown.steps.values() if step.id in view.losses} | gradients.keys()
    order = [step for step in reversed(view.request.trace.steps) if step.id in reported]
    dropped = len(blames) - sum(map(len, gradients.values()))
    return [
        BackwardResult(step_id=step.id, gradients=tuple(gradients[step.id]), dropped=0 if number else dropped)
        for number, step in enumerate(order)
    ]


def _locate(blame: BlameEntry, shown: TracePrompt) -> tuple[str, str] | None:
    """Find the surface and the step of an entry; None if that step has no such surface.

    A blank step means the last that read the surface; a blank surface means the only one of the step.
    """
    steps = {step.id: alias for alias, step in shown.steps.items()}
    at = resolve_id(blame.step, {name: alias for step_id, alias in steps.items() for name in (step_id, alias)})
    candidates = list(shown.steps.values()) if not blame.step else [shown.steps[at]] if at else []
    for step in reversed(candidates):
        blamable = shown.view.blamable[step.id]
        ids = {name: name for name in blamable}
        ids |= {alias: name for alias, name in shown.surfaces.items() if name in blamable}
        surface_id = resolve_id(blame.of, ids)
        if surface_id is not None:
            return surface_id, step.id
    return None


def _find_reached_losses(view: TraceView) -> dict[str, tuple[Loss, ...]]:
    """The losses from which blame would reach each step of the walk: those at the step or downstream of it."""
    losses = view.request.case_loss.losses
    reached: defaultdict[str, set[int]] = defaultdict(set)
    for number, loss in enumerate(losses):
        reached[loss.step_id].add(number)
    for step in reversed(view.request.trace.steps):
        for source in view.predecessors.get(step.id, ()):
            reached[source.id] |= reached[step.id]
    return {step_id: tuple(losses[number] for number in sorted(reached[step_id])) for step_id in view.predecessors}
