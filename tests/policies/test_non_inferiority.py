from __future__ import annotations

from collections.abc import Sequence

import pytest

from promptiter.errors import SetupError
from promptiter.evaluation.mean_usage import average_common_usage, average_usage
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.policies.acceptance import NoRegression
from promptiter.policies.evidence import AcceptanceDecision, Evidence, MoreEvidence
from promptiter.policies.goals import Figure
from promptiter.policies.non_inferiority import NonInferior
from traces import Failure, Usage


def row(
    case_id: str, value: float | None, *, repeat: int = 0, tokens: int | None = 100, usd: float | None = None
) -> CaseRow:
    usage = Usage(input_tokens=tokens, output_tokens=None if tokens is None else 10, cost_usd=usd)
    if value is None:
        return CaseRow(case_id=case_id, repeat=repeat, usage=usage, error=Failure("crash"))
    score = Score(metric="exact", value=value, threshold=0.5)
    return CaseRow(case_id=case_id, repeat=repeat, scores=(score,), usage=usage)


def arm(*repeats: Sequence[float | None], tokens: int | None = 100, usd: float | None = None) -> Evaluation:
    rows = [
        row(f"c{at:02}", value, repeat=number, tokens=tokens, usd=usd)
        for number, values in enumerate(repeats)
        for at, value in enumerate(values)
    ]
    return Evaluation(eval_set_id="v", profile_digest="p", rows=tuple(rows), thresholds={"exact": 0.5})


def decide_on(
    before: Evaluation, after: Evaluation, *, margin: float = 0.05, figure: Figure = "tokens", gained: float = 0.0
) -> AcceptanceDecision | MoreEvidence:
    return NonInferior(margin, figure).decide(Evidence(accepted=before, candidate=after, accepted_gain=gained))


def test_a_candidate_that_is_as_good_and_takes_less_is_accepted() -> None:
    answer = decide_on(arm([1.0] * 20), arm([1.0] * 20, tokens=60))
    assert answer == AcceptanceDecision(
        accepted=True, delta=0.0, reason="gain +0.000 is within the margin 0.05; 110.0 to 70.0 tokens per run"
    )


def test_a_candidate_that_is_as_good_and_takes_as_much_is_rejected() -> None:
    answer = decide_on(arm([1.0] * 4), arm([1.0] * 4))
    assert answer.reason == "110.0 to 110.0 tokens per run: nothing is saved"


def test_a_loss_within_the_margin_is_allowed_and_one_beyond_is_not() -> None:
    within = decide_on(arm([1.0] * 20), arm([0.0, *[1.0] * 19], tokens=60))
    assert isinstance(within, AcceptanceDecision)
    assert within.accepted
    beyond = decide_on(arm([1.0] * 20), arm([*[0.0] * 10, *[1.0] * 10], tokens=60))
    assert beyond == AcceptanceDecision(accepted=False, delta=-0.5, reason="gain -0.500 is beyond the margin 0.05")


def test_the_losses_of_several_candidates_add_up() -> None:
    answer = decide_on(arm([1.0] * 20), arm([0.0, *[1.0] * 19], tokens=60), gained=-0.04)
    assert isinstance(answer, MoreEvidence)
    settled = decide_on(arm(*[[1.0] * 20] * 3), arm(*[[0.0, *[1.0] * 19]] * 3, tokens=60), gained=-0.04)
    assert settled.reason == "gain -0.050, -0.090 since the start is beyond the margin 0.05"
    gained = decide_on(arm([1.0] * 20), arm([*[0.0] * 10, *[1.0] * 10], tokens=60), gained=0.9)
    assert gained.reason == "gain -0.500 is beyond the margin 0.05"


def test_a_loss_that_may_be_noise_gets_more_repeats_until_they_show_no_noise() -> None:
    first = decide_on(arm([1.0] * 10), arm([0.0, *[1.0] * 9], tokens=60))
    assert first == MoreEvidence(repeats=1, reason="gain -0.100 is beyond the margin 0.05, but may be noise")
    again = decide_on(arm(*[[1.0] * 10] * 2), arm(*[[0.0, *[1.0] * 9]] * 2, tokens=60))
    assert again.reason == "gain -0.100 is beyond the margin 0.05"
    flaky = decide_on(arm(*[[1.0] * 10] * 2), arm([0.0, 0.0, *[1.0] * 8], [1.0, *[1.0] * 9], tokens=60))
    assert isinstance(flaky, MoreEvidence)
    third = decide_on(arm(*[[1.0] * 10] * 3), arm([0.0, 0.0, *[1.0] * 8], *[[1.0] * 10] * 2, tokens=60), margin=0.01)
    assert isinstance(third, AcceptanceDecision)
    assert not third.accepted


@pytest.mark.parametrize(
    ("before", "after", "whose"), [(None, 0.1, "the accepted profile"), (0.1, None, "the candidate")]
)
def test_an_unknown_price_is_never_a_saving(before: float | None, after: float | None, whose: str) -> None:
    answer = decide_on(arm([1.0] * 4, usd=before), arm([1.0] * 4, usd=after), figure="usd")
    assert answer.reason == f"the dollars of {whose} are unknown, so a saving cannot be shown"


def test_dollars_are_printed_as_dollars() -> None:
    answer = decide_on(arm([1.0] * 4, usd=0.0123), arm([1.0] * 4, usd=0.001), figure="usd")
    assert answer.reason == "gain +0.000 is within the margin 0.05; $0.0123 to $0.001 per run"


def test_a_profile_that_scores_too_low_is_not_compared() -> None:
    answer = decide_on(arm([0.0] * 30), arm([0.0] * 30, tokens=1))
    assert answer.reason == "the accepted profile scores too low to lose the margin of 0.05"


def test_it_composes() -> None:
    policy = NonInferior(0.2) & NoRegression()
    assert repr(policy) == "NonInferior(0.2, 'tokens', 3) & NoRegression()"
    lost = Evidence(accepted=arm([1.0] * 10), candidate=arm([0.0, *[1.0] * 9], tokens=60))
    answer = policy.decide(lost)
    assert isinstance(answer, AcceptanceDecision)
    assert not answer.accepted


def test_an_invalid_margin_or_figure_is_refused() -> None:
    for wrong in ({"margin": -0.1}, {"figure": "words"}, {"max_repeats": 0}):
        with pytest.raises(SetupError):
            NonInferior(**wrong)


def test_a_mean_over_runs_is_unknown_if_one_of_them_is() -> None:
    known, unknown = row("a", 1.0, usd=0.2), row("b", 1.0, usd=None)
    both = Evaluation(eval_set_id="v", profile_digest="p", rows=(known, unknown), thresholds={"exact": 0.5})
    assert average_usage(both).usd is None
    assert average_usage(both).tokens == 110.0


def test_runs_that_failed_under_one_profile_do_not_count_under_the_other() -> None:
    before, after = arm([1.0, 1.0]), arm([1.0, None], tokens=50)
    long = row("c01", 1.0, tokens=1000)
    before = Evaluation(eval_set_id="v", profile_digest="p", rows=(before.rows[0], long), thresholds={"exact": 0.5})
    first, second = average_common_usage(before, after)
    assert (first.tokens, second.tokens) == (110.0, 60.0)
    assert average_usage(arm([None])).tokens is None
