"""`backpropagate`: the whole backward pass as one function. Traces and losses in; gradients, signals and patches out.

A search calls its parts, because it records each of them, checks the gradients and lets a person review the patches:
`BackwardPass` attributes losses and merges gradients, `PatchWriter` writes patches.
"""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.backprop.backward_pass import (
    MAX_PARALLEL_TRACES,
    MIN_SUPPORT,
    BackwardPass,
    as_attributor,
    count_cases,
    describe_failed_attribution,
    describe_failed_merge,
    group_by_surface,
)
from promptiter.backprop.example_pool import ExamplePool
from promptiter.backprop.example_writing import ExampleWriter
from promptiter.backprop.judged_traces import JudgedTrace, JudgedTraces
from promptiter.backprop.lint import Linter
from promptiter.backprop.patch_writing import PatchWriter, collect_patches, describe_total_failure
from promptiter.backprop.record import PassResult
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.errors import SetupError, StageError, UnknownSurfaceError
from promptiter.grouping import group_by
from promptiter.llm.redaction import process_redactor
from promptiter.profile import Profile
from promptiter.registry import OFFLINE_STAGES
from promptiter.stages.contracts import Aggregator, Attributor, Backwarder
from promptiter.stages.optimizer import Optimizer, Rejection
from promptiter.stages.roles import check_stages
from promptiter.structure import TEXT_TYPES, StructureSnapshot


async def backpropagate(
    traces: Iterable[JudgedTrace],
    *,
    structure: StructureSnapshot,
    profile: Profile | None = None,
    targets: Iterable[str] | None = None,
    backwarder: Backwarder | Attributor | None = None,
    aggregator: Aggregator | None = None,
    optimizer: Optimizer | None = None,
    rejected: Iterable[Rejection] = (),
    min_support: float = MIN_SUPPORT,
    concurrency: int = MAX_PARALLEL_TRACES,
) -> PassResult:
    """Carry the losses of recorded traces back to the surfaces behind them, and write a patch for each.

    The traces were recorded under `profile`, by default the baseline. Traces that passed are used for comparison, and
    count as cases. `targets` are the surfaces that may change, by default all texts. The optimizer sees the values that
    were `rejected` before, the latest last. Stages default to those that need no model; stages that call one use the
    active gateway (`with gateway.active():`). A stage that fails on one step or surface skips it, and the result says
    why; StageError is raised if it fails on everything. Nothing is run: whether the patches help is for an evaluation
    to show.
    """
    check_stages(backwarder=backwarder, aggregator=aggregator, optimizer=optimizer)
    _check_structure(structure)
    judged = JudgedTraces(traces)
    current = Profile.baseline(structure) if profile is None else profile
    current.check(structure)
    work = BackwardPass(
        structure=structure,
        profile=current,
        targets=_select_targets(targets, structure),
        traces=judged,
        redact=process_redactor().redact_text,
        concurrency=concurrency,
    )
    attributor = as_attributor(backwarder)
    losses = [await each.build_case_loss() for each in judged.failed]
    blames = await work.attribute(losses, attributor)
    if problem := describe_failed_attribution(blames, attributor):
        raise StageError(problem)
    gradients = group_by_surface(blames)
    merger = aggregator or SupportAggregator()
    merged = await work.merge(
        gradients,
        merger,
        failed_cases=count_cases(losses),
        all_cases=len(judged.cases),
        min_support=min_support,
    )
    if problem := describe_failed_merge(merged, merger):
        raise StageError(problem)
    pool = ExamplePool(redact=work.redact)
    surfaces = [structure.surface(each.surface_id) for each in merged.signals]
    await pool.add_runs(judged, (each.node_id for each in surfaces if each.type == "examples"))
    tried = group_by(rejected, lambda rejection: rejection.surface_id)
    writer = PatchWriter(
        optimizer=optimizer or OFFLINE_STAGES.get("optimizer")(),
        structure=structure,
        profile=current,
        traces=judged,
        linter=Linter(judged.cases),
        redact=work.redact,
        find_rejected=lambda surface_id: tuple(tried.get(surface_id, ())),
        examples=ExampleWriter(pool=pool),
    )
    attempts = await writer.write(merged.signals, gradients)
    if problem := describe_total_failure(attempts, writer.optimizer):
        raise StageError(problem)
    written = collect_patches(attempts)
    return PassResult(
        losses=tuple(losses),
        blames=blames,
        signals=merged.signals,
        below_support=merged.below_support,
        patches=written.patches,
        refused=written.refused,
        notes=(*(await work.explain_no_blame(losses) if not gradients else ()), *written.notes),
    )


def _check_structure(structure: object) -> None:
    if not isinstance(structure, StructureSnapshot):
        raise SetupError(f"structure is a {type(structure).__name__}; give a structure, such as agent.describe()")


def _select_targets(targets: Iterable[str] | None, structure: StructureSnapshot) -> frozenset[str]:
    if targets is None:
        return frozenset(surface.id for surface in structure.surfaces if surface.type in TEXT_TYPES)
    if isinstance(targets, str):
        raise SetupError(f"targets is {targets!r}; give a list: [{targets!r}]")
    found = frozenset(targets)
    for target in sorted(found - set(structure.surface_ids)):
        raise UnknownSurfaceError(target, known=structure.surface_ids)
    return found
