from __future__ import annotations

import pytest

from promptiter.backprop.trial_record import LossFigures, Trial, TrialDetails
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.policies.evidence_record import EvidenceRecord
from promptiter.profile import Profile
from promptiter.runlog.events import Event, EventMeasured
from promptiter.runlog.results import CandidateResult, RoundResult, RunResult
from promptiter.runs.layout_000.trial_rows import RowBuilder, TrialTimes
from promptiter.structure import Node, StructureSnapshot, Surface
from traces.model import Json

STRUCTURE = StructureSnapshot(nodes=(Node(id="a", kind="llm"),), surfaces=(Surface(node_id="a", type="instruction"),))
ACCEPTED, CANDIDATE = Profile.baseline(STRUCTURE), Profile.of(STRUCTURE, {"a#instruction": "New."})


def evaluate(number: int, profile: Profile, *sweeps: float, first: int = 0) -> Evaluation:
    rows = tuple(
        CaseRow(case_id="h", repeat=repeat, scores=(Score(metric="m", value=value, threshold=0.5),))
        for repeat, value in enumerate(sweeps, start=first)
    )
    return Evaluation(
        number=number,
        phase="validation",
        eval_set_id="holdout",
        profile_digest=profile.digest,
        rows=rows,
        thresholds={"m": 0.5},
    )


def test_the_hold_out_figures_of_a_decision_are_of_the_sweeps_that_decided() -> None:
    earlier = evaluate(0, ACCEPTED, 1.0, 1.0)  # the accepted profile was run again: no case of this one counts
    again = evaluate(1, ACCEPTED, 0.5, 0.25, 1.0, first=2)
    found = evaluate(2, CANDIDATE, 0.5, 0.5, 0.0, first=2)
    figures = LossFigures(mean=0.5, std=0.0, runs=(0.5, 0.5))
    trial = Trial(
        number=1,
        place=1,
        cycle=1,
        phase="textual",
        parent=ACCEPTED.digest,
        candidate=CANDIDATE.digest,
        before=figures,
        outcome="accepted",
    )
    candidate = CandidateResult(
        profile=CANDIDATE,
        evaluations=(found,),
        decision=AcceptanceDecision(accepted=True, delta=0.125, reason="the hold-out gains 0.125"),
        evidence=EvidenceRecord(accepted={1: None, 0: ()}, candidate={2: None}),
    )
    result = RoundResult(
        round=1,
        input_profile=ACCEPTED,
        candidates=(candidate,),
        evaluations=(again,),
        details=TrialDetails(trials=(trial,)),
    )
    run = RunResult(
        status="running",
        verdict="no_evidence",
        structure=STRUCTURE,
        targets=(),
        objective="mean_score",
        initial_profile=ACCEPTED,
        accepted_profile=ACCEPTED,
        working_profile=CANDIDATE,
        evaluations=(earlier,),
    )
    [row] = RowBuilder({}, accept_sigma=1.0, repeats=2).build(result, run)
    decision = row.decision
    assert (decision.best_holdout_mean_before, decision.holdout_mean) == (0.625, 0.5)
    assert (decision.holdout_regression, decision.holdout_within_noise) == (-0.125, True)
    assert decision.holdout_noise_bar == pytest.approx(0.125)


def test_the_time_of_an_evaluation_is_from_its_start_to_its_end() -> None:
    times = TrialTimes()
    started: dict[str, Json] = {"eval_set_id": "train", "profile_digest": "p", "cases": 2, "runs": 2}
    ended: dict[str, Json] = {"thresholds": {}}

    def note(kind: str, number: int, elapsed_s: float, data: dict[str, Json]) -> None:
        measured = EventMeasured(elapsed_s=elapsed_s)
        times.note(Event(seq=0, run_id="r", type=kind, data={"evaluation": number, **data}, measured=measured))

    note("evaluation_started", 0, 1.0, started)
    note("evaluation_started", 1, 1.5, started)
    note("evaluation_finished", 0, 3.0, ended)
    note("evaluation_finished", 1, 4.0, ended)
    assert times.measure([0]) == 2.0
    assert times.measure([0, 1]) == 4.5
    assert times.measure([2]) == 0.0
