"""TextWriter: asks a mutator for the candidates of a round, and records what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from promptiter.backprop.patch_writing import PatchAttempt
from promptiter.backprop.record import StagesMeasured
from promptiter.concurrency import run_together
from promptiter.engine.session import Session
from promptiter.errors import FATAL_ERRORS, CommandError, ToolFailedError
from promptiter.profile import PatchSet
from promptiter.registry import OFFLINE_STAGES
from promptiter.search.edit_record import Mutation, MutationsWritten
from promptiter.search.mutation import MutationRequest, TargetNames, TextMutator
from promptiter.search.propose import PatchProposer
from promptiter.search.stage_failures import StageFailures
from promptiter.stages.contracts import AggregateResult


class TextWriter:
    """Asks one mutator for the candidates of one run. It is asked for all of a round at once.

    A mutator that does not work at first ends the run; later, it costs a round.
    """

    def __init__(self, session: Session, mutator: TextMutator, names: TargetNames, *, failures: StageFailures) -> None:
        self._session = session
        self._mutator = mutator
        self._names = names
        self._failures = failures
        self._patcher = PatchProposer(session, OFFLINE_STAGES.get("optimizer")(), failures=failures)  # for its review

    async def write(self, requests: Sequence[MutationRequest]) -> Sequence[Mutation]:
        """A mutation for each request, in their order."""
        key = [[each.profile.digest, each.number, len(each.rejected)] for each in requests]
        written = await self._session.record(MutationsWritten, partial(self._write, requests), request=key)
        if any(not each.has_failed for each in written.mutations):
            self._failures.mark_working("optimizer")
        return written.mutations

    def learn(self, patches: PatchSet, *, accepted: bool, reason: str) -> None:
        """Nothing: requests have what was rejected."""

    async def _write(self, requests: Sequence[MutationRequest]) -> MutationsWritten:
        ledger = self._session.evaluator.gateway.ledger
        before = ledger.snapshot()
        mutations = await run_together(map(self._write_one, requests))
        failed = [each.note for each in mutations if each.has_failed]
        problem = f"the mutator failed: {failed[0]}" if len(failed) == len(mutations) else None
        self._failures.handle("optimizer", problem)
        reviewed = [await self._review(each, request) for each, request in zip(mutations, requests, strict=True)]
        measured = StagesMeasured.between(before, ledger.snapshot())
        return MutationsWritten(mutations=tuple(reviewed), measured=measured)

    async def _write_one(self, request: MutationRequest) -> Mutation:
        redact = self._session.redact
        try:
            written = await self._mutator.write(request)
        except FATAL_ERRORS:
            raise
        except (CommandError, ToolFailedError) as error:
            return Mutation(note=redact(str(error)), has_failed=True)
        mutation = self._names.build_mutation(written, request.profile)
        return replace(mutation, refused=tuple(map(redact, mutation.refused)), note=redact(mutation.note))

    async def _review(self, mutation: Mutation, request: MutationRequest) -> Mutation:
        """The mutation as a reviewer wants it, if there is one."""
        if self._session.reviewer is None or not mutation.patches:
            return mutation
        text = "; ".join(request.failures or request.aims)
        attempts = [PatchAttempt(patch=each) for each in mutation.patches]
        signals = [AggregateResult(surface_id=each.surface_id, text=text) for each in mutation.patches]
        reviewed = await self._patcher.review(attempts, signals, request.profile)
        kept = tuple(each.patch for each in reviewed if each.patch is not None)
        vetoed = tuple(before for before, each in zip(mutation.patches, reviewed, strict=True) if each.patch is None)
        vetoes = "; ".join(rejection.reason for each in reviewed for rejection in each.refused)
        return replace(mutation, patches=PatchSet(kept), vetoed=PatchSet(vetoed), note=vetoes or mutation.note)
