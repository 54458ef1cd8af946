"""Train evaluations that a search passes to `Session.validate`."""

from dataclasses import replace

import pytest

from promptiter.engine.session_checks import check_train_pair
from promptiter.errors import SetupError
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.profile import Profile

ACCEPTED = Profile(structure_id="s")
CANDIDATE = Profile(structure_id="s", overrides={"a#instruction": "New."})


def evaluate(profile: Profile, *, number: int | None = 1, repeats: int = 2) -> Evaluation:
    rows = tuple(CaseRow(case_id="c", repeat=repeat) for repeat in range(repeats))
    return Evaluation(
        eval_set_id="train", profile_digest=profile.digest, rows=rows, thresholds={"m": 1.0}, number=number
    )


def check(*train: object) -> None:
    check_train_pair(train, accepted=ACCEPTED, candidate=CANDIDATE)


def test_evaluations_of_both_profiles_on_the_same_runs_are_a_pair() -> None:
    check(evaluate(ACCEPTED), evaluate(CANDIDATE, number=2))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ((evaluate(ACCEPTED),), "give the evaluations of the accepted profile and the candidate"),
        ((evaluate(ACCEPTED), "x"), "give the evaluations of the accepted profile and the candidate"),
        ((evaluate(CANDIDATE), evaluate(ACCEPTED)), "another profile than the accepted profile"),
        ((evaluate(ACCEPTED), evaluate(ACCEPTED)), "another profile than the candidate"),
        ((evaluate(ACCEPTED), evaluate(CANDIDATE, repeats=3)), "have other cases or repeats"),
        ((evaluate(ACCEPTED), evaluate(CANDIDATE, number=None)), "has no number"),
    ],
)
def test_other_evaluations_are_refused(train: tuple[object, ...], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        check(*train)


def test_a_subset_of_the_runs_is_not_the_same() -> None:
    whole = evaluate(ACCEPTED)
    with pytest.raises(SetupError, match="have other cases or repeats"):
        check(replace(whole, rows=whole.rows[:1]), evaluate(CANDIDATE))
