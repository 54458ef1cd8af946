"""fold: events in, RunResult out. What a run is can always be told from its events alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from promptiter.backprop.loss import CaseLoss
from promptiter.engine.events import Event
from promptiter.engine.evidence import AcceptanceDecision
from promptiter.engine.records import PassResult, RoundResult, RunMeasured, RunResult, TraceBlame
from promptiter.engine.shapes import value_of
from promptiter.engine.stopping import StopDecision
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.profile import PatchSet, Profile
from promptiter.structure import StructureSnapshot
from traces.model import Json


def fold(events: Iterable[Event]) -> RunResult:
    """The result that such events add up to; of a run that is not at its end, its state so far."""
    state = _State()
    for event in events:
        getattr(state, f"on_{event.type}", _nothing)(event)
    return state.result()


def _nothing(_event: Event) -> None:
    pass


class _State:
    """What is known after some events. One method a type."""

    def __init__(self) -> None:
        self._result: RunResult | None = None
        self._rounds: list[RoundResult] = []
        self._rows: list[CaseRow] = []
        self._head: dict[str, Json] = {}

    def result(self) -> RunResult:
        assert self._result is not None, "a run begins with run_started"
        return replace(self._result, rounds=tuple(self._rounds))

    def on_run_started(self, event: Event) -> None:
        data = event.data
        profile = value_of(Profile, data["profile"])
        self._result = RunResult(
            status="running",
            verdict="no_evidence",
            structure=StructureSnapshot.from_json(data["structure"]),
            targets=tuple(data["targets"]),
            objective=data["objective"],
            initial_profile=profile,
            accepted_profile=profile,
            measured=RunMeasured(run_id=event.run_id, started_at=data["measured"]["started_at"]),
        )

    def on_evaluation_started(self, event: Event) -> None:
        self._rows, self._head = [], event.data

    def on_case(self, event: Event) -> None:
        self._rows.append(value_of(CaseRow, event.data["row"]))

    def on_evaluation_finished(self, event: Event) -> None:
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
                self._change_round(train=found)
            case "rerun":
                self._change_round(reruns=(*self._rounds[-1].reruns, found))
            case "validation":
                self._validated(found)
            case _:
                pass

    def _validated(self, found: Evaluation) -> None:
        """A candidate's validation; or more draws, of the candidate or of the accepted profile."""
        known = self._rounds[-1].validation
        accepted = self._known.accepted
        if known is not None and known.profile_digest == found.profile_digest:
            self._change_round(validation=replace(known, rows=(*known.rows, *found.rows)))
        elif accepted is not None and accepted.profile_digest == found.profile_digest:
            self._change(accepted=replace(accepted, rows=(*accepted.rows, *found.rows)))
        else:
            self._change_round(validation=found)

    def on_round_started(self, event: Event) -> None:
        profile = value_of(Profile, event.data["profile"])
        before = self._rounds[-1] if self._rounds else None
        now = RoundResult(round=event.round, input_profile=profile)
        if before is not None and before.input_profile == profile:  # what is known of it is not found again
            known = tuple(replace(each, patches=PatchSet(), refused=(), notes=()) for each in before.passes[:1])
            now = replace(now, train=before.train, passes=known)
        self._rounds.append(now)

    def on_losses(self, event: Event) -> None:
        found = PassResult(losses=value_of(tuple[CaseLoss, ...], event.data["value"]))
        self._change_round(passes=(*self._rounds[-1].passes, found))

    def on_backward(self, event: Event) -> None:
        self._change_pass(blames=value_of(tuple[TraceBlame, ...], event.data["value"]))

    def on_aggregation(self, event: Event) -> None:
        found = value_of(PassResult, event.data["value"])
        self._change_pass(signals=found.signals, left=found.left)

    def on_patches(self, event: Event) -> None:
        found = value_of(PassResult, event.data["value"])
        self._change_pass(patches=found.patches, refused=found.refused, notes=found.notes)

    def on_candidate(self, event: Event) -> None:
        self._change_round(output_profile=value_of(Profile, event.data["profile"]))

    def on_decision(self, event: Event) -> None:
        decision = value_of(AcceptanceDecision, event.data["value"])
        self._change_round(decision=decision)
        now = self._rounds[-1]
        if decision.accepted and now.output_profile is not None:
            self._change(accepted_profile=now.output_profile, accepted=now.validation, verdict="improved")

    def on_stop(self, event: Event) -> None:
        decision = value_of(StopDecision, event.data["value"])
        if self._rounds:
            self._change_round(stop=decision)
        if decision.stop:
            self._change(stop=decision)

    def on_run_completed(self, event: Event) -> None:
        data = event.data
        measured = value_of(RunMeasured, {"run_id": event.run_id, **data["measured"]})
        measured = replace(measured, started_at=self._known.measured.started_at)
        stop = value_of(StopDecision, data["stop"]) if data["stop"] is not None else self._known.stop
        self._change(status=data["status"], verdict=data["verdict"], error=data["error"], stop=stop, measured=measured)

    @property
    def _known(self) -> RunResult:
        assert self._result is not None, "a run begins with run_started"
        return self._result

    def _change(self, **fields: Json) -> None:
        self._result = replace(self._known, **fields)

    def _change_round(self, **fields: Json) -> None:
        self._rounds[-1] = replace(self._rounds[-1], **fields)

    def _change_pass(self, **fields: Json) -> None:
        passes = self._rounds[-1].passes or (PassResult(),)
        self._change_round(passes=(*passes[:-1], replace(passes[-1], **fields)))
