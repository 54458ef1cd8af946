"""RunState: the state of a run after some of its events, which `fold` is built on.

It holds the run so far and the current round only, whatever the number of rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from promptiter.errors import JournalError
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.surface_reads import find_unread
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.policies.final_test import Conclusion
from promptiter.policies.goals import SCORE, Goal
from promptiter.policies.stopping import StopDecision
from promptiter.profile import PatchSet, Profile
from promptiter.runlog.codec import decode_candidate, from_plain
from promptiter.runlog.events import Event
from promptiter.runlog.results import Ablation, PassResult, RoundResult, RunMeasured, RunResult, TraceBlame
from promptiter.stages.contracts import BlameChecks
from promptiter.stages.losses import CaseLoss
from promptiter.structure import StructureSnapshot
from traces.model import Json


@dataclass(frozen=True, slots=True)
class ReusedTraining:
    """The train results of a round, which the next round reuses if it has the same input profile."""

    train: Evaluation | None = None
    passes: tuple[PassResult, ...] = ()

    @staticmethod
    def of(found: RoundResult) -> ReusedTraining:
        """Return the train evaluation and the first pass of a round, without its patches."""
        first = tuple(replace(each, patches=PatchSet(), refused=(), notes=()) for each in found.passes[:1])
        return ReusedTraining(found.train, first)


NOTHING = ReusedTraining()


class RunState:
    """A run after some events, with one method per event type.

    It starts before the first event, or before any round, given the run so far and the train results to reuse.
    `source_seq` is the sequence number of the round whose train results this round reuses (its own if none).
    `accepted_seq` is the event of the accepted candidate.
    """

    def __init__(self, run: RunResult | None = None, reused: ReusedTraining = NOTHING) -> None:
        self.round: RoundResult | None = None
        self.source_seq = 0
        self.accepted_seq: int | None = None
        self._run = run
        self._accepted = "" if run is None else run.accepted_profile.digest
        self._input = self._accepted
        self._reused = reused
        self._round_seq = 0
        self._candidate_seq = 0
        self._final_evaluations: dict[str, Evaluation] = {}
        self._unread = frozenset(() if run is None else run.unread_surfaces)
        self._rows: list[CaseRow] = []
        self._head: dict[str, Json] | None = None

    @property
    def run(self) -> RunResult:
        """The run so far, without its rounds."""
        assert self._run is not None, "a run begins with run_started"
        return self._run

    def rounds(self, events: Iterable[Event]) -> Iterator[RoundResult]:
        """Take all these events, and yield each round when the next one starts or the events end."""
        for event in events:
            if event.type == "round_started" and self.round is not None:
                yield self.round
            self.take(event)
        if self.round is not None:
            yield self.round

    def take(self, event: Event) -> None:
        """Take one more event. An event after the end of a run means that the run was resumed."""
        if self._run is not None and self._run.status != "running" and event.type != "run_completed":
            self._change(status="running", verdict="no_evidence", stop=None, error=None, is_final=False)
        getattr(self, f"_on_{event.type}", _ignore)(event)

    def _on_run_started(self, event: Event) -> None:
        data = event.data
        profile = from_plain(Profile, data["profile"])
        self._accepted = self._input = profile.digest
        self._unread = frozenset(data["targets"])
        self._run = RunResult(
            status="running",
            verdict="no_evidence",
            structure=StructureSnapshot.from_json(data["structure"]),
            targets=tuple(data["targets"]),
            objective=data["objective"],
            goal=from_plain(Goal, data["goal"]) if "goal" in data else SCORE,
            initial_profile=profile,
            accepted_profile=profile,
            working_profile=profile,
            measured=RunMeasured(run_id=event.run_id, started_at=data["measured"]["started_at"]),
        )

    def _on_evaluation_started(self, event: Event) -> None:
        self._rows, self._head = [], event.data

    def _on_case(self, event: Event) -> None:
        row: CaseRow = from_plain(CaseRow, event.data["row"])
        self._rows.append(row)
        self._unread = find_unread(self._unread, [row.reads])

    def _on_evaluation_finished(self, event: Event) -> None:
        if self._head is None:
            return
        self._change(unread_surfaces=tuple(sorted(self._unread)))
        found = Evaluation(
            eval_set_id=self._head["eval_set_id"],
            profile_digest=self._head["profile_digest"],
            rows=tuple(self._rows),
            thresholds=event.data["thresholds"],
            weights=event.data["weights"],
            max_errored_fraction=event.data["max_errored_fraction"],
        )
        match event.phase:
            case "baseline":
                self._change(baseline=found, accepted=found)
            case "train":
                self._add_training(found)
            case "rerun" if self.round is not None:
                self._change_round(reruns=(*self.round.reruns, found))
            case "validation":
                self._add_validation(found)
            case "ablation" | "final_test":
                self._final_evaluations[found.profile_digest] = _add_repeats(
                    self._final_evaluations.get(found.profile_digest), found
                )
            case _:
                pass

    def _add_training(self, found: Evaluation) -> None:
        """Set the round's own train results, which replace reused ones."""
        if self.round is not None and self.round.passes is self._reused.passes:
            self._change_round(passes=())
            self.source_seq = self._round_seq
        self._change_round(train=found)

    def _add_validation(self, found: Evaluation) -> None:
        """Add repeats of a candidate's validation, or of the accepted profile on the same repeats."""
        if self.round is None:
            return
        if found.profile_digest == self._accepted:
            self._change_round(compared=_add_repeats(self.round.compared, found))
        else:
            self._change_round(validation=_add_repeats(self.round.validation, found))

    def _on_round_started(self, event: Event) -> None:
        if event.data["profile_digest"] != self._accepted:
            raise JournalError(
                f"event {event.seq} of the journal starts a round from the profile "
                f"{event.data['profile_digest'][:12]}…, but {self._accepted[:12]}… is the accepted one at that event; "
                "restore the journal from a copy"
            )
        self._update_reused(event.seq)
        self._round_seq, self._input, self._head = event.seq, self._accepted, None
        self.round = RoundResult(
            round=event.round,
            input_profile=self.run.accepted_profile,
            train=self._reused.train,
            passes=self._reused.passes,
        )

    def _update_reused(self, now: int) -> None:
        """Reuse the train results of the previous round if it had the same input profile."""
        known = self._reused
        if self.round is None:
            self.source_seq = now
        elif self._input != self._accepted:
            self._reused, self.source_seq = NOTHING, now
        elif (found := ReusedTraining.of(self.round)).train is not known.train or found.passes != known.passes:
            self._reused, self.source_seq = found, self._round_seq
        elif known is NOTHING:
            self.source_seq = now

    def _on_losses(self, event: Event) -> None:
        if self.round is not None:
            found = PassResult(losses=from_plain(tuple[CaseLoss, ...], event.data["value"]))
            self._change_round(passes=(*self.round.passes, found))

    def _on_backward(self, event: Event) -> None:
        self._change_pass(blames=from_plain(tuple[TraceBlame, ...], event.data["value"]))

    def _on_gradient_check(self, event: Event) -> None:
        found = from_plain(BlameChecks, event.data["value"])
        self._change_pass(checks=found.checks, replays=found.replays)

    def _on_aggregation(self, event: Event) -> None:
        found = from_plain(PassResult, event.data["value"])
        self._change_pass(signals=found.signals, below_support=found.below_support)

    def _on_patches(self, event: Event) -> None:
        found = from_plain(PassResult, event.data["value"])
        self._change_pass(patches=found.patches, refused=found.refused, notes=found.notes)

    def _on_candidate(self, event: Event) -> None:
        candidate = decode_candidate(event.data, accepted=self.run.accepted_profile, structure=self.run.structure)
        self._candidate_seq = event.seq
        self._change_round(output_profile=candidate)

    def _on_decision(self, event: Event) -> None:
        decision = from_plain(AcceptanceDecision, event.data["value"])
        self._change_round(decision=decision)
        now = self.round
        if decision.accepted and now is not None and now.output_profile is not None:
            profile = now.output_profile
            self._change(accepted_profile=profile, working_profile=profile, accepted=now.validation)
            self._accepted, self.accepted_seq = now.output_profile.digest, self._candidate_seq

    def _on_audit(self, event: Event) -> None:
        """If a node reads something that its trace does not record, unread surfaces are unknown."""
        if event.data["value"]:
            self._unread = frozenset()
            self._change(unread_surfaces=())

    def _on_stop(self, event: Event) -> None:
        decision = from_plain(StopDecision, event.data["value"])
        self._change_round(stop=decision)
        if decision.stop:
            self._change(stop=decision)

    def _on_search_cut(self, _event: Event) -> None:
        """Forget the runs of an ablation that the budget ended: they are not part of the final test."""
        self._final_evaluations = {}

    def _on_ablation(self, event: Event) -> None:
        found = from_plain(Ablation, event.data["value"])
        run = self.run
        left = run.working_profile.reset(found.dropped, to=run.initial_profile, snapshot=run.structure)
        accepted = self._final_evaluations.get(left.digest, run.accepted)
        self._change(ablation=found, working_profile=left, accepted_profile=left, accepted=accepted)
        self._final_evaluations = {}

    def _on_conclusion(self, event: Event) -> None:
        """Adopt the working profile if the final test shows a gain, else the initial one."""
        found, run = from_plain(Conclusion, event.data["value"]), self.run
        before = self._final_evaluations.get(run.initial_profile.digest, run.baseline)
        after = self._final_evaluations.get(run.working_profile.digest, run.accepted)
        profile, accepted = (run.working_profile, after) if found.adopts else (run.initial_profile, before)
        self._change(
            conclusion=found, verdict=found.verdict, baseline=before, accepted_profile=profile, accepted=accepted
        )

    def _on_run_completed(self, event: Event) -> None:
        data = event.data
        measured = from_plain(RunMeasured, {"run_id": event.run_id, **data["measured"]})
        measured = replace(measured, started_at=self.run.measured.started_at)
        stop = from_plain(StopDecision, data["stop"]) if data["stop"] is not None else self.run.stop
        self._change(
            status=data["status"],
            verdict=data["verdict"],
            error=data["error"],
            is_final=data["is_final"],
            stop=stop,
            measured=measured,
        )

    def _change(self, **fields: Json) -> None:
        self._run = replace(self.run, **fields)

    def _change_round(self, **fields: Json) -> None:
        if self.round is not None:
            self.round = replace(self.round, **fields)

    def _change_pass(self, **fields: Json) -> None:
        if self.round is not None:
            passes = self.round.passes or (PassResult(),)
            self._change_round(passes=(*passes[:-1], replace(passes[-1], **fields)))


def _add_repeats(known: Evaluation | None, more: Evaluation) -> Evaluation:
    """Add repeats to an evaluation, or replace it if it is of another profile."""
    if known is None or known.profile_digest != more.profile_digest:
        return more
    rows = {(row.case_id, row.repeat): row for row in (*known.rows, *more.rows)}
    return replace(known, rows=tuple(rows.values()))


def _ignore(_event: Event) -> None:
    pass
