"""Patches for blamed surfaces: the optimizer writes them, and lint sends back those that are not worth a try."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from promptiter.backprop.example_writing import ExampleWriter
from promptiter.backprop.judged_traces import AgentSurvey, JudgedTraces
from promptiter.backprop.lint import Linter
from promptiter.backprop.record import PatchesWritten
from promptiter.backprop.stage_calls import Redact, call_or_error, call_stage, check_surface_id
from promptiter.concurrency import run_together
from promptiter.llm.prices import Price
from promptiter.profile import PatchEvidence, PatchSet, Profile, SurfacePatch
from promptiter.stages.contracts import AggregateResult, SurfaceGradient
from promptiter.stages.optimizer import Optimizer, OptimizeRequest, PatchResult, Rejection, RejectionKind
from promptiter.structure import StructureSnapshot, Surface

MAX_ATTEMPTS = 2
"""Maximum number of optimizer calls per patch: lint may refuse the first."""

DIFFERENTLY = (
    "The last value that you gave was rejected before, so it cannot help. See what failed with it, and answer the "
    "signal in a different way."
)
"""What an optimizer is told, once, if it repeats a rejected value."""


NO_EXAMPLES = "there are no train cases yet that new examples could show"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchAttempt:
    """What the optimizer wrote for one signal: a patch, or a note that says why there is none.

    It `has_failed` if it raised an error, or wrote only values that the surface cannot take.
    """

    patch: SurfacePatch | None = None
    refused: tuple[Rejection, ...] = ()
    note: str = ""
    has_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchWriter:
    """Writes patches on top of one profile. `find_rejected` returns earlier values of a surface, which are shown.

    `emphasis` is what the patches should do differently from others with the same evidence, if there are any.
    `find_prices` returns the prices of the models that a surface may choose from. Few-shot examples are those of
    `examples`, as long as it has some that were not rejected; then the optimizer is asked. All patches together may
    change `max_changed_lines` lines.
    """

    optimizer: Optimizer
    structure: StructureSnapshot
    profile: Profile
    traces: JudgedTraces
    linter: Linter
    redact: Redact
    find_rejected: Callable[[str], tuple[Rejection, ...]] = lambda _: ()
    emphasis: str = ""
    find_prices: Callable[[Surface], Mapping[str, Price]] = lambda _: {}
    examples: ExampleWriter | None = None
    max_changed_lines: int | None = None

    async def write(
        self, signals: Sequence[AggregateResult], gradients: Mapping[str, tuple[SurfaceGradient, ...]]
    ) -> list[PatchAttempt]:
        """Ask for one patch per signal, all at once, the first signal first."""
        survey = await self.traces.survey() if signals else AgentSurvey({}, {})
        texts = {each.surface_id: each.text for each in signals}
        requests = [await self._build_request(each, gradients[each.surface_id], survey, texts) for each in signals]
        if self.max_changed_lines is not None:
            lines = max(1, self.max_changed_lines // max(1, len(requests)))
            requests = [replace(each, max_changed_lines=lines) for each in requests]
        return await run_together(self._write_patch(each, gradients[each.surface.id]) for each in requests)

    async def _build_request(
        self,
        signal: AggregateResult,
        gradients: tuple[SurfaceGradient, ...],
        survey: AgentSurvey,
        texts: Mapping[str, str],
    ) -> OptimizeRequest:
        """Build the request for one signal; `texts` are those of all signals, by surface."""
        surface = self.profile.surface(signal.surface_id, self.structure)
        siblings = self._find_siblings(surface)
        nodes = {node.id: node for node in self.structure.nodes}
        return OptimizeRequest(
            surface=surface,
            signal=signal,
            node_description=nodes[surface.node_id].description if surface.node_id in nodes else "",
            siblings=siblings,
            failing=await self.traces.collect_failing(gradients),
            passing=await self.traces.collect_passing(gradients),
            rejected=self.find_rejected(surface.id),
            place=survey.places.get(surface.node_id),
            tool_calls=survey.find_calls(surface),
            criteria=self.traces.criteria,
            emphasis=self.emphasis,
            prices=self.find_prices(surface),
            edited_siblings={each.id: texts[each.id] for each in siblings if each.id in texts},
        )

    async def _write_patch(self, request: OptimizeRequest, gradients: tuple[SurfaceGradient, ...]) -> PatchAttempt:
        """Ask for a patch until lint passes it; each refusal is shown to the optimizer."""
        surface, before = request.surface, request.rejected
        if surface.type == "examples" and self.examples is not None:
            chosen = self.examples.write(surface, rejected=[each.value for each in before])
            if chosen is not None:
                return PatchAttempt(patch=_link_patch(chosen, gradients))
            if self.examples.without:  # the optimizer has only seen those cases
                return PatchAttempt(note=f"{surface.id}: {NO_EXAMPLES}")
        refused: tuple[Rejection, ...] = ()
        has_failed = True
        for _ in range(MAX_ATTEMPTS):
            request = replace(request, rejected=before + refused)
            answer, error = await call_or_error(partial(self._optimize, request), self.redact)
            if answer is None or answer.patch is None:
                note = error or (answer.reason if answer is not None else "")
                has_failed = has_failed and error is not None
                return PatchAttempt(refused=refused, note=f"{surface.id}: {note}", has_failed=has_failed)
            patch = _link_patch(replace(answer.patch, surface_id=surface.id), gradients)
            rejection = lint_patch(self.linter, patch, surface, tried=request.rejected)
            if rejection is None:
                return PatchAttempt(patch=patch, refused=refused)
            refused += (rejection,)
            has_failed = has_failed and not surface.allows(patch.value)
            if rejection.kind == "repeated":
                request = replace(request, emphasis=f"{self.emphasis} {DIFFERENTLY}".strip())
        return PatchAttempt(refused=refused, has_failed=has_failed)

    async def _optimize(self, request: OptimizeRequest) -> PatchResult:
        method = self.optimizer.optimize
        answer = await call_stage(method, request, returns=PatchResult)
        if answer.patch is not None:
            check_surface_id(answer.patch.surface_id, asked=request.surface.id, method=method)
        return answer

    def _find_siblings(self, surface: Surface) -> tuple[Surface, ...]:
        others = self.structure.surfaces_of(surface.node_id)
        return tuple(self.profile.surface(each.id, self.structure) for each in others if each.id != surface.id)


def collect_patches(attempts: Sequence[PatchAttempt]) -> PatchesWritten:
    """The patches of all attempts, what was refused, and why patches are missing."""
    return PatchesWritten(
        patches=PatchSet(tuple(each.patch for each in attempts if each.patch is not None)),
        refused=tuple(rejection for each in attempts for rejection in each.refused),
        notes=tuple(each.note for each in attempts if each.note),
    )


def describe_total_failure(attempts: Sequence[PatchAttempt], optimizer: Optimizer) -> str | None:
    """Say that the optimizer failed, if that is why there is not a single patch."""
    failed = [each for each in attempts if each.has_failed]
    is_partial = any(each.patch is not None or (each.refused and not each.has_failed) for each in attempts)
    if not failed or is_partial:
        return None
    why = failed[0].note or "; ".join(f"{each.surface_id}: {each.reason}" for each in failed[0].refused[:1])
    return f"{type(optimizer).__name__} failed and wrote no patch: {why}"


def lint_patch(
    linter: Linter,
    patch: SurfacePatch,
    surface: Surface,
    *,
    tried: Sequence[Rejection] = (),
    rules: Container[str] | None = None,
) -> Rejection | None:
    """Why lint refuses a patch, or None. A value that was only tried together with others may be tried again."""
    alone = [rejection for rejection in tried if rejection.kind != "tried_together"]
    problems = linter.find_problems(patch, surface=surface, rejected=alone)
    found = [problem for problem in problems if rules is None or problem.rule in rules]
    kind: RejectionKind = "repeated" if any(problem.rule == "repeat" for problem in found) else "refused"
    own = [problem for problem in found if problem.rule != "repeat"]  # they are why it was rejected before, too
    reason = "; ".join(problem.message for problem in own or found)
    if not reason:
        return None
    failing = next((each.failing for each in alone if each.failing and each.value == patch.value), ())
    return Rejection(surface_id=surface.id, value=patch.value, reason=reason, kind=kind, failing=failing)


def _link_patch(patch: SurfacePatch, gradients: Sequence[SurfaceGradient]) -> SurfacePatch:
    """The patch with the gradients behind it, and behind those of its edits whose cases the optimizer named."""
    edits = (
        replace(each, evidence=_link(each.evidence, gradients)) if each.evidence != PatchEvidence() else each
        for each in patch.edits
    )
    return replace(patch, evidence=_link(patch.evidence, gradients), edits=tuple(edits))


def _link(known: PatchEvidence, gradients: Sequence[SurfaceGradient]) -> PatchEvidence:
    """The gradients behind a change, their steps and cases: those that the optimizer named, or of its cases."""
    if known.gradients:
        behind = [each for each in gradients if each.id in known.gradients]
    else:
        behind = [each for each in gradients if not known.cases or each.case_id in known.cases]
    return PatchEvidence(
        cases=known.cases or tuple(dict.fromkeys(each.case_id for each in behind)),
        steps=known.steps or tuple(dict.fromkeys(f"{each.case_id}/{each.step_id}" for each in behind)),
        gradients=known.gradients or tuple(each.id for each in behind),
    )
