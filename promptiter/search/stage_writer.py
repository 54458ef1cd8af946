"""StageWriter: lets the stages of backprop write the candidates of the search `edits`.

What fails is blamed on surfaces and patched, as in a round of backprop. If nothing fails, the signal asks for what the
acceptance policy would still accept: a bound that is broken, or the first tie-breaker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import cycle, islice
from typing import Literal

from promptiter.backprop.backward_pass import MIN_SUPPORT, as_attributor, find_blaming_stage
from promptiter.backprop.record import PatchesWritten
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.engine.session import Session
from promptiter.grouping import group_by
from promptiter.profile import PatchSet
from promptiter.registry import OFFLINE_STAGES
from promptiter.search.blame import BlameFinder, BlameReport
from promptiter.search.edit_aims import ask_for_more, find_broken_bounds
from promptiter.search.edit_record import Mutation
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.mutation import MutationRequest
from promptiter.search.propose import EMPHASES, PatchProposer
from promptiter.search.stage_failures import StageFailures
from promptiter.search.stage_models import find_model
from promptiter.stages.contracts import AggregateResult, Aggregator, Attributor, Backwarder
from promptiter.stages.optimizer import Optimizer
from promptiter.stages.roles import check_stages
from promptiter.structure import TEXT_TYPES

MOST_ASKED = 3
"""If nothing fails, at most this number of texts are patched at once, or as many files as the limits allow."""

EQUAL = "the stages wrote the same as for another candidate of this round"

MAX_CANDIDATES = len(EMPHASES)
"""The most candidates that the stages write from the same evidence."""


@dataclass
class StageMutator:
    """The stages of backprop as a mutator. Those that are left out default to ones that need no model."""

    backwarder: Backwarder | Attributor | None = None
    aggregator: Aggregator | None = None
    optimizer: Optimizer | None = None
    _: KW_ONLY
    check: GradientCheck | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        check_stages(backwarder=self.backwarder, aggregator=self.aggregator, optimizer=self.optimizer)
        self.attributor = as_attributor(self.backwarder)
        self.merger: Aggregator = self.aggregator or SupportAggregator()
        self.writer: Optimizer = self.optimizer or OFFLINE_STAGES.get("optimizer")()
        if self.check == "auto":
            self.check = None if find_model(find_blaming_stage(self.attributor)) is None else GradientCheck()

    @property
    def stages(self) -> tuple[object, ...]:
        """All stages, with the correctors of the gradient check."""
        correctors = self.check.correctors if isinstance(self.check, GradientCheck) else ()
        return (find_blaming_stage(self.attributor), self.merger, self.writer, *correctors)


class StageWriter:
    """Writes the candidates of one run. A profile is blamed once, however many rounds start from it."""

    def __init__(self, session: Session, stages: StageMutator, *, failures: StageFailures) -> None:
        self._session = session
        check = stages.check if isinstance(stages.check, GradientCheck) else None
        self._finder = BlameFinder(
            session, stages.attributor, stages.merger, failures=failures, min_support=MIN_SUPPORT, check=check
        )
        self._patcher = PatchProposer(session, stages.writer, failures=failures, adds_examples=False)
        self._reports: dict[str, BlameReport] = {}
        self._targets = tuple(
            sorted(each for each in session.targets if session.snapshot.surface(each).type in TEXT_TYPES)
        )
        self._asked = 0
        self._unanswered = 0

    async def write(self, requests: Sequence[MutationRequest]) -> Sequence[Mutation]:
        """A mutation for each request. Where the stages write equal ones, the others have no patches."""
        mutations = [Mutation(note=EQUAL, is_exhausted=True) for _ in requests]
        places = group_by(range(len(requests)), lambda place: requests[place].profile.digest)
        for group in places.values():
            written = await self._write_from(requests[group[0]], width=len(group))
            for place, mutation in zip(group, written, strict=False):
                mutations[place] = mutation
        return mutations

    def learn(self, patches: PatchSet, *, accepted: bool, reason: str) -> None:
        """Remember what was tried, for the optimizer; once a candidate is accepted, it may be tried again."""
        if accepted:
            self._patcher.rejected.forget_all_but_vetoes()
            self._unanswered = 0
        else:
            self._patcher.rejected.add_candidate(patches, reason)

    async def _write_from(self, request: MutationRequest, *, width: int) -> list[Mutation]:
        report = await self._find_report(request)
        is_asked = not report.signals
        if is_asked:
            report = self._ask(report, request)
        variants = await self._patcher.propose_variants(report, width=min(width, MAX_CANDIDATES))
        if len(variants) > 1:
            await self._patcher.choose(variants[0])
        if any(each.patches or each.refused for each in variants):
            self._unanswered = 0
        elif is_asked:
            self._unanswered += len(report.signals)
        is_exhausted = not is_asked or self._unanswered >= len(self._targets)
        return [_build_mutation(each, is_exhausted=is_exhausted) for each in variants]

    async def _find_report(self, request: MutationRequest) -> BlameReport:
        """The blame for what fails under a profile, with the bounds that it breaks in each signal."""
        known = self._reports.get(request.profile.digest)
        if known is None:
            found = await self._finder.find(request.evaluation, self._session.train, request.profile, phase="train")
            signals = found.signals or found.weak
            broken = find_broken_bounds(self._session.request.acceptance, request.figures)
            also = f"\n\nAlso: {'; '.join(broken)}." if broken else ""
            known = replace(found, signals=tuple(replace(each, text=each.text + also) for each in signals))
            self._reports[request.profile.digest] = known
        return known

    def _ask(self, report: BlameReport, request: MutationRequest) -> BlameReport:
        """A report that asks for what fails, or for more, of some texts in turn."""
        policy, limits = self._session.request.acceptance, request.limits
        wanted = "; ".join(request.failures) or ask_for_more(policy, request.figures)
        if not wanted or not self._targets:
            return report
        most = MOST_ASKED if limits is None or limits.max_files is None else limits.max_files
        count = min(most, len(self._targets))
        chosen = list(islice(cycle(self._targets), self._asked, self._asked + count))
        self._asked = (self._asked + count) % len(self._targets)
        cases = tuple(case.id for case in self._session.train.cases)
        signals = tuple(
            AggregateResult(surface_id=each, text=wanted, case_ids=cases, support=float(len(cases))) for each in chosen
        )
        return replace(report, signals=signals, gradients=dict.fromkeys(chosen, ()))


def _build_mutation(written: PatchesWritten, *, is_exhausted: bool) -> Mutation:
    refused = tuple(f"{each.surface_id}: {each.reason}" for each in written.refused)
    if written.patches:
        return Mutation(patches=written.patches)
    is_over = not refused or all(each.kind == "repeated" for each in written.refused)
    note = "; ".join(written.notes) or "the stages have nothing to change"
    return Mutation(refused=refused, note="" if refused else note, is_exhausted=is_over and is_exhausted)
