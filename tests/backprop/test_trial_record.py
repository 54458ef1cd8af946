from promptiter.backprop.record import BackpropDetails, PassResult
from promptiter.backprop.trial_record import (
    AxisDensity,
    LossFigures,
    NumericProposal,
    PhaseEnded,
    PhaseResult,
    PhaseStarted,
    PointsAsked,
    TextualProposal,
    Trial,
    TrialDetails,
    TrialFinished,
    get_trials,
    list_phases,
    measure_loss,
)
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.profile import Profile
from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runlog.results import RoundResult
from promptiter.stages.diagnosis import Diagnosis

FIGURES = LossFigures(mean=0.5, std=0.0, runs=(0.5, 0.5))
POINT = NumericProposal(
    study_id="numeric-phase-1",
    number=0,
    params={"agent#parameter.top_k": 3},
    axes={"agent#parameter.top_k": AxisDensity(value=3, good=2.0, bad=0.5)},
)
TRIAL = Trial(
    number=1, place=1, cycle=1, phase="numeric", parent="a", numeric=POINT, before=FIGURES, outcome="no_gain", reason=""
)
PHASE = PhaseResult(cycle=1, phase="numeric", ended="patience", attempts=1, first=FIGURES, last=FIGURES)


def _row(case_id: str, repeat: int, value: float | None) -> CaseRow:
    error = None if value is not None else "the judge gave no answer"
    score = Score(metric="m", value=value, error=error)
    return CaseRow(case_id=case_id, repeat=repeat, scores=(score,))


def _evaluate(rows: list[CaseRow]) -> Evaluation:
    return Evaluation(eval_set_id="train", profile_digest="p", rows=tuple(rows), thresholds={"m": 0.5}, number=7)


def test_the_loss_of_a_profile_has_a_run_per_sweep() -> None:
    found = measure_loss(
        _evaluate([_row("a", 0, 1.0), _row("b", 0, 0.5), _row("a", 1, 0.5), _row("b", 1, 0.5)]), "mean_score"
    )

    assert found is not None
    assert found.runs == (0.25, 0.5)
    assert (found.mean, found.std, found.evaluation) == (0.375, 0.125, 7)
    assert found.metrics == {"m": 0.625}


def test_the_weighted_loss_is_a_loss_already() -> None:
    found = measure_loss(_evaluate([_row("a", 0, 0.75)]), "weighted_loss")

    assert found is not None
    assert found.mean == 0.25


def test_what_could_not_be_scored_is_counted_and_left_out() -> None:
    found = measure_loss(_evaluate([_row("a", 0, 1.0), _row("b", 0, None)]), "mean_score")

    assert found is not None
    assert (found.mean, found.errored, found.is_reliable) == (0.0, 1, False)
    assert measure_loss(_evaluate([_row("b", 0, None)]), "mean_score") is None


def test_the_events_of_a_round_become_its_details_after_those_of_a_backward_pass() -> None:
    details: object = BackpropDetails(passes=(PassResult(),))
    for event in (
        PhaseStarted(cycle=1, phase="numeric", first=FIGURES),
        PointsAsked(points=(POINT,)),
        TrialFinished(trial=TRIAL),
        PhaseEnded(phase=PHASE),
    ):
        assert isinstance(details, BackpropDetails)
        details = event.add_to(details)

    assert isinstance(details, TrialDetails)
    result = RoundResult(round=1, input_profile=Profile(structure_id="s"), details=details)
    assert len(details.passes) == 1
    assert get_trials(result) == (TRIAL,)
    assert [*list_phases([result])] == [PHASE]
    assert from_plain(RoundResult, to_plain(result)) == result


def test_a_textual_trial_is_as_sure_as_its_most_confident_diagnosis() -> None:
    diagnoses = {name: Diagnosis(failing_pattern="x", confidence=value) for name, value in (("a", 0.9), ("b", 0.3))}

    assert TextualProposal(diagnoses=diagnoses).confidence == 0.9
