from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.evaluation.result import CaseRow, Evaluation, Objective
from promptiter.evaluation.score import Score
from promptiter.evaluation.stats.permutation import PairedScores, mean_gain
from promptiter.policies.acceptance import (
    AcceptancePolicy,
    AllOf,
    AnyGain,
    AnyOf,
    ComposablePolicy,
    MinGain,
    NoRegression,
    Protected,
    decide,
)
from promptiter.policies.combine import iter_policies
from promptiter.policies.evidence import AcceptanceDecision, Answer, Evidence, MoreEvidence
from promptiter.policies.pairing import pair_scores
from traces import Failure

Values = Mapping[str, float | None]
OBJECTIVES: tuple[Objective, ...] = ("mean_score", "pass_rate", "weighted_loss")


def row(case_id: str, value: float | None, *, repeat: int = 0) -> CaseRow:
    """None: the run crashed."""
    if value is None:
        return CaseRow(case_id=case_id, repeat=repeat, error=Failure("crash", "no output"))
    return CaseRow(case_id=case_id, repeat=repeat, scores=(Score(metric="exact", value=value, threshold=0.5),))


def of_rows(rows: Sequence[CaseRow], *, limit: float = 0.25) -> Evaluation:
    return Evaluation(
        eval_set_id="v", profile_digest="p", rows=tuple(rows), thresholds={"exact": 0.5}, max_errored_fraction=limit
    )


def of(values: Values, *, limit: float = 1.0) -> Evaluation:
    return of_rows([row(case_id, value) for case_id, value in values.items()], limit=limit)


def evidence(
    before: Values, after: Values, *, objective: Objective = "mean_score", protected: Sequence[str] = ()
) -> Evidence:
    return Evidence(accepted=of(before), candidate=of(after), objective=objective, protected=frozenset(protected))


def scores(*values: float | None) -> Values:
    return {f"c{number:02}": value for number, value in enumerate(values)}


def decide_on(policy: AcceptancePolicy, seen: Evidence) -> AcceptanceDecision:
    answer = policy.decide(seen)
    assert isinstance(answer, AcceptanceDecision)
    return answer


@dataclass(frozen=True)
class Says(ComposablePolicy):
    """A policy that always gives one answer."""

    answer: Answer

    def decide(self, evidence: Evidence) -> Answer:  # noqa: ARG002
        return self.answer


class Bare:
    """A custom class with only `decide`."""

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        return evidence.accept("bare says yes")


YES = Says(AcceptanceDecision(accepted=True, delta=0.0, reason="yes"))
NO = Says(AcceptanceDecision(accepted=False, delta=0.0, reason="no"))
MORE = Says(MoreEvidence(cases=("b", "a"), repeats=2, reason="more"))
FLAT = evidence(scores(0.5, 0.5), scores(0.5, 0.5))

figures = st.floats(0, 1)
maybe = st.none() | figures
rows = st.dictionaries(st.sampled_from("abcdefg"), maybe, min_size=1)
answers = st.builds(
    AcceptanceDecision, accepted=st.booleans(), delta=st.none(), reason=st.sampled_from(["r", "s", "t"])
) | st.builds(
    MoreEvidence,
    cases=st.sampled_from([(), ("a",), ("c", "b")]),
    repeats=st.integers(1, 3),
    on=st.sampled_from(["validation", "train"]),
)
policies = answers.map(Says)


# The gain


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(values=rows)
def test_equal_rows_have_a_gain_of_exactly_zero_and_are_never_accepted_by_a_minimum_gain(
    values: Values, objective: Objective
) -> None:
    seen = evidence(values, values, objective=objective)
    assert seen.gain is None or repr(seen.gain) == "0.0"
    assert not decide_on(MinGain(1e-12), seen).accepted
    assert (seen.new_passes, seen.new_fails, seen.newly_unscored, seen.newly_scored) == ((), (), (), ())


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(pairs=st.lists(st.tuples(figures, figures), min_size=1, max_size=6))
def test_where_every_case_is_scored_the_gain_is_the_difference_of_the_objectives(
    pairs: list[tuple[float, float]], objective: Objective
) -> None:
    seen = evidence(scores(*(b for b, _ in pairs)), scores(*(a for _, a in pairs)), objective=objective)
    before, after = seen.accepted.objective(objective), seen.candidate.objective(objective)
    assert before is not None
    assert after is not None
    assert seen.gain == pytest.approx(after - before, abs=1e-9)
    assert [delta.case_id for delta in seen.deltas] == sorted(case.case_id for case in seen.accepted.cases)


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(before=rows, after=rows)
def test_the_gain_back_is_the_gain_with_the_other_sign(before: Values, after: Values, objective: Objective) -> None:
    there, back = evidence(before, after, objective=objective), evidence(after, before, objective=objective)
    assert (there.gain is None) == (back.gain is None)
    assert (there.gain or 0.0) == -(back.gain or 0.0)


@given(before=rows, after=rows, crashed=st.sampled_from("abcdefg"))
def test_a_crash_of_the_candidate_never_raises_the_gain(before: Values, after: Values, crashed: str) -> None:
    for objective in OBJECTIVES:
        sound = evidence(before, {crashed: 0.3, **after}, objective=objective)
        worse = evidence(before, {**after, crashed: None}, objective=objective)
        if worse.gain is not None and sound.gain is not None:
            assert worse.gain <= sound.gain


def test_a_prompt_that_crashes_on_its_worst_case_does_not_win() -> None:
    seen = evidence(scores(1.0, 1.0, 1.0, 0.2), scores(1.0, 1.0, 1.0, None))
    assert (seen.accepted.mean_score, seen.candidate.mean_score) == (0.8, 1.0)
    assert seen.gain == -0.05
    assert decide_on(MinGain(), seen).reason == "gain -0.050 is below 0.005 (cases: 1 no longer scored)"


def test_a_crashed_case_that_the_candidate_fixes_is_a_gain() -> None:
    seen = evidence(scores(1.0, 1.0, 1.0, None), scores(1.0, 1.0, 1.0, 1.0))
    assert (seen.gain, seen.newly_scored, seen.new_passes) == (0.25, ("c03",), ("c03",))
    assert decide_on(MinGain(), seen).reason == "gain +0.250 reaches 0.005 (cases: 1 scored for the first time)"


def test_a_case_that_was_not_run_counts_as_unscored() -> None:
    seen = evidence({"a": 0.5, "b": 0.5}, {"a": 0.5})
    assert (seen.gain, seen.newly_unscored) == (-0.25, ("b",))


def test_crashed_repeats_count_as_the_worst() -> None:
    baseline = of_rows([row("a", 0.6, repeat=repeat) for repeat in range(4)])
    candidate = of_rows([row("a", value, repeat=repeat) for repeat, value in enumerate((0.7, 0.7, 0.7, None))])
    seen = Evidence(accepted=baseline, candidate=candidate)
    assert candidate.mean_score == pytest.approx(0.7)
    assert seen.gain == pytest.approx(0.75 * 0.7 - 0.6)
    assert Evidence(accepted=candidate, candidate=candidate).gain == 0.0


def test_a_crash_does_not_avoid_a_negative_score() -> None:
    assert evidence(scores(-2.0, 1.0), scores(None, 1.0)).gain == 0.0


def test_a_crash_is_a_loss_of_one() -> None:
    assert evidence(scores(1.0, 0.5), scores(1.0, None), objective="weighted_loss").gain == -0.25


def test_deltas_cover_cases_that_both_could_score_by_id() -> None:
    seen = evidence({"d": 0.1, "c": None, "b": 0.2, "a": 1.0}, {"a": 0.5, "b": None, "c": 0.3, "d": 0.6})
    assert [(delta.case_id, delta.change) for delta in seen.deltas] == [("a", -0.5), ("d", 0.5)]
    assert (seen.newly_unscored, seen.newly_scored) == (("b",), ("c",))


def test_new_passes_and_new_fails_are_named() -> None:
    seen = evidence({"a": 0.0, "b": 1.0, "c": 1.0, "d": 1.0}, {"a": 1.0, "b": 0.0, "c": 1.0, "d": None})
    assert (seen.new_passes, seen.new_fails) == (("a",), ("b", "d"))


def test_evaluations_without_cases_have_no_deltas_and_no_gain() -> None:
    assert (evidence({}, {}).deltas, evidence({}, {}).gain) == ((), None)


# Repeats that only some cases have


def test_more_repeats_of_cases_that_look_bad_do_not_raise_the_gain() -> None:
    before, after = of(scores(1, 0, 1)), of(scores(0, 1, 1))
    again = [row("c00", 1.0, repeat=repeat) for repeat in range(1, 6)]
    seen = Evidence(
        accepted=of_rows([*before.rows, *again]),
        candidate=of_rows([*after.rows, *again]),
    )
    assert (seen.gain, seen.new_fails, seen.new_passes) == (0.0, ("c00",), ("c01",))
    assert not decide_on(MinGain(1e-12), seen).accepted
    assert not decide_on(NoRegression(), seen).accepted


def test_any_gain_asks_for_more_repeats_while_gains_and_losses_cancel_each_other_out() -> None:
    steady = evidence(scores(1, 0), scores(0, 1))
    assert isinstance(AnyGain().decide(steady), MoreEvidence)
    twice = Evidence(
        accepted=of_rows([row("a", 1.0, repeat=n) for n in (0, 1)] + [row("b", 0.0, repeat=n) for n in (0, 1)]),
        candidate=of_rows([row("a", 0.0, repeat=n) for n in (0, 1)] + [row("b", 1.0, repeat=n) for n in (0, 1)]),
    )
    assert not decide_on(AnyGain(), twice).accepted, "a second repeat that changes nothing is enough"
    noisy = Evidence(
        accepted=of_rows([row("a", 1.0), row("b", 0.0), row("a", 0.0, repeat=1), row("b", 0.0, repeat=1)]),
        candidate=of_rows([row("a", 0.0), row("b", 1.0), row("a", 0.0, repeat=1), row("b", 0.0, repeat=1)]),
    )
    assert isinstance(AnyGain().decide(noisy), MoreEvidence)
    again = [row(case, 0.0, repeat=2) for case in "ab"]
    third = Evidence(
        accepted=of_rows([*noisy.accepted.rows, *again]), candidate=of_rows([*noisy.candidate.rows, *again])
    )
    assert not decide_on(AnyGain(), third).accepted, "after two more repeats it decides"
    assert not decide_on(AnyGain(), FLAT).accepted, "without any change there is nothing to repeat"
    assert not decide_on(AnyGain(), evidence(scores(1, 1, 0), scores(0, 0, 1))).accepted, "a loss is decided at once"


def test_only_common_repeats_count_or_all_if_there_are_none() -> None:
    twice = [row(case_id, 1.0, repeat=repeat) for case_id in "ab" for repeat in (0, 1)]
    seen = Evidence(accepted=of_rows([replace(each, scores=()) for each in twice]), candidate=of_rows(twice))
    assert seen.common is seen
    apart = Evidence(accepted=of({"a": 0.5}), candidate=of_rows([row("a", 1.0, repeat=1)]))
    assert apart.gain == 0.5


# Repeat by repeat


@pytest.mark.parametrize("objective", ["mean_score", "weighted_loss"])
@given(cases=st.lists(st.lists(st.tuples(maybe, maybe), min_size=2, max_size=2), min_size=1, max_size=4))
def test_paired_scores_have_the_gain_of_the_evidence(
    cases: list[list[tuple[float | None, float | None]]], objective: Objective
) -> None:
    arms = [
        of_rows(
            [row(f"c{n}", pair[arm], repeat=repeat) for n, case in enumerate(cases) for repeat, pair in enumerate(case)]
        )
        for arm in (0, 1)
    ]
    seen = Evidence(accepted=arms[0], candidate=arms[1], objective=objective)
    if seen.gain is not None:
        assert mean_gain(pair_scores(arms[0], arms[1], objective)) == pytest.approx(seen.gain, abs=1e-9)


def test_paired_scores_are_by_case_and_repeat_and_a_crash_is_the_worst() -> None:
    baseline = of_rows([row("b", 0.5, repeat=1), row("b", None, repeat=0), row("a", 1.0), row("a", -0.5, repeat=1)])
    candidate = of_rows([row("a", None), row("a", 1.0, repeat=1), row("b", 0.4, repeat=1), row("b", 0.3, repeat=0)])
    assert pair_scores(baseline, candidate) == (
        PairedScores(case_id="a", before=(1.0, -0.5), after=(-0.5, 1.0)),
        PairedScores(case_id="b", before=(-0.5, 0.5), after=(0.3, 0.4)),
    )
    assert pair_scores(baseline, candidate, "pass_rate")[1].before == (0.0, 1.0)


def test_a_repeat_of_one_profile_alone_is_not_paired_and_a_case_of_one_alone_is_refused() -> None:
    baseline, candidate = of({"a": 0.5}), of_rows([row("a", 0.5), row("a", 1.0, repeat=1)])
    assert [case.repeats for case in pair_scores(baseline, candidate)] == [1]
    with pytest.raises(SetupError, match="case 'b' has no repeat under both profiles; run both on the same cases"):
        pair_scores(baseline, of({"a": 0.5, "b": 1.0}))


# The policies


@pytest.mark.parametrize(
    ("after", "accepted", "reason"),
    [
        (0.6, True, "gain +0.050"),
        (0.5002, True, "gain +0.0001"),
        (0.5, False, "gain +0.000: no better"),
        (0.4998, False, "gain -0.0001: worse"),
        (None, False, "gain -0.250: worse (cases: 1 no longer scored)"),
    ],
)
def test_any_gain_above_zero_is_accepted(after: float | None, accepted: bool, reason: str) -> None:
    answer = decide_on(AnyGain(), evidence(scores(0.5, 0.5), scores(after, 0.5)))
    assert (answer.accepted, answer.reason) == (accepted, reason)


def test_a_gain_of_rounding_errors_does_not_count() -> None:
    assert not decide_on(AnyGain(), evidence(scores(0.1 + 0.2), scores(0.3))).accepted
    assert not decide_on(AnyGain(), evidence(scores(0.3), scores(0.1 + 0.2))).accepted


@pytest.mark.parametrize(("before", "after"), [(0.2, 0.7), (0.1, 0.6), (0.4, 0.9), (0.0, 0.5)])
def test_a_gain_that_reaches_the_minimum_but_for_rounding_is_accepted(before: float, after: float) -> None:
    rest = [0.5] * 99
    seen = evidence(scores(before, *rest), scores(after, *rest))
    assert decide_on(MinGain(0.005), seen) == AcceptanceDecision(
        accepted=True, delta=0.005, reason="gain +0.005 reaches 0.005"
    )


def test_a_gain_below_the_minimum_is_rejected_with_figures_in_the_reason() -> None:
    answer = decide_on(MinGain(), evidence(scores(0.5), scores(0.504)))
    assert answer == AcceptanceDecision(accepted=False, delta=0.004, reason="gain +0.004 is below 0.005")


def test_a_gain_just_below_the_minimum_is_printed_with_enough_digits() -> None:
    assert decide_on(MinGain(), evidence(scores(0.5), scores(0.50499))).reason == "gain +0.00499 is below 0.005"


def test_a_minimum_of_zero_accepts_an_equal_candidate() -> None:
    assert decide_on(MinGain(0), FLAT).reason == "gain +0.000 reaches 0"


def test_no_regression_names_the_cases_that_no_longer_pass() -> None:
    answer = decide_on(NoRegression(), evidence(scores(1, 1, 1, 0), scores(1, 0, None, 1)))
    assert (answer.accepted, answer.delta) == (False, -0.25)
    assert answer.reason == "passed before and no longer: 'c01', 'c02' (could not be scored)"


def test_no_regression_accepts_a_lower_score_that_still_passes() -> None:
    assert decide_on(NoRegression(), evidence(scores(1.0), scores(0.5))).reason == "every case that passed still passes"


def test_a_reason_names_ten_cases_and_counts_the_others() -> None:
    answer = decide_on(NoRegression(), evidence(scores(*[1.0] * 13), scores(*[0.0] * 13)))
    assert answer.reason.endswith("'c09' and 3 more")


def test_protected_cases_of_the_run_still_pass_or_are_named() -> None:
    before, after = {"a": 1.0, "b": 1.0, "c": 0.0}, {"a": 1.0, "b": 0.0, "c": 0.0}
    assert decide_on(Protected(), evidence(before, after)).reason == "no case is protected"
    assert decide_on(Protected(), evidence(before, after, protected="ac")).reason == "protected cases still pass (2)"
    assert Protected().decide(evidence(before, after, protected="abc")) == MoreEvidence(
        cases=("b",), repeats=3, reason="protected, and no longer passing at first: 'b'"
    )


def test_protected_cases_of_the_policy_replace_those_of_the_run() -> None:
    seen = evidence({"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 1.0}, protected="a")
    assert decide_on(Protected(("b",)), seen).accepted
    assert isinstance(Protected(("b", "a")).decide(seen), MoreEvidence)


def rerun(before: Sequence[float | None], after: Sequence[float | None], *, first_look: int = 1) -> Evidence:
    """A protected case that passes at first under the accepted profile and fails under the candidate, and re-runs."""

    def arm(*values: float | None) -> Evaluation:
        rows = [row("a", value, repeat=repeat) for repeat, value in enumerate(values)]
        return of_rows([*rows, row("b", 1.0)], limit=1.0)

    return Evidence(
        accepted=arm(*[1.0] * first_look, *before),
        candidate=arm(*[0.0] * first_look, *after),
        protected=frozenset("a"),
        first_look_repeats=first_look,
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1, 1, 1), (0, 0, 0), "no: 'a' passes 0 of 3 re-runs, and 3 before the change"),
        ((1, 1, 1), (0, None, 0), "no: 'a' passes 0 of 3 re-runs, and 3 before the change"),
        ((1, 0, 1, 0, 1), (0, 1, 0, 1, 0), "no: 'a' passes 2 of 5 re-runs, and 3 before the change"),
        ((1, 1, 1), (1, 1, 1), "yes: 'a' passes 3 of 3 re-runs, and 3 before the change"),
        ((1, 1, 1, 1, 1), (0, 1, 0, 1, 1), "yes: 'a' passes 3 of 5 re-runs, and 5 before the change"),
        ((0, 0, None), (0, 0, 0), "yes: 'a' passes 0 of 3 re-runs, and 0 before the change"),
        ((1, 0, 0, 1, 0), (0, 0, 0, 0, 0), "yes: 'a' passes 0 of 5 re-runs, and 2 before the change"),
        ((1, 1, 1), (0, 0, 1), "2 more"),
        ((1, 1, 0), (0, 0, 0), "2 more"),
        ((1,), (0,), "2 more"),
    ],
)
@pytest.mark.parametrize("first_look", [1, 3])
def test_a_majority_of_re_runs_decides_about_a_protected_case(
    before: Sequence[float | None], after: Sequence[float | None], expected: str, first_look: int
) -> None:
    seen = rerun(before, after, first_look=first_look)
    answer = Protected().decide(seen)
    if isinstance(answer, MoreEvidence):
        assert (f"{answer.repeats} more", answer.cases) == (expected, ("a",))
    else:
        prefix = "protected cases still pass (1); " if answer.accepted else "protected, and no longer passing: "
        assert answer.reason == prefix + expected.partition(": ")[2]
        assert answer.accepted == expected.startswith("yes")


@given(pairs=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=5, max_size=8))
def test_at_most_five_re_runs_decide_and_later_repeats_change_nothing(pairs: list[tuple[bool, bool]]) -> None:
    def after(count: int) -> Answer:
        return Protected().decide(rerun([float(b) for b, _ in pairs[:count]], [float(a) for _, a in pairs[:count]]))

    settled = [answer for count in range(9) if isinstance(answer := after(count), AcceptanceDecision)]
    assert len(settled) >= len(range(5, 9))
    assert len({answer.accepted for answer in settled}) == 1
    broken = sum(a for _, a in pairs[:5]) < 3 <= sum(b for b, _ in pairs[:5])
    assert settled[-1].accepted != broken


def test_a_protected_case_that_fails_in_repeats_of_other_policies_is_noticed_too() -> None:
    before = [row("a", 1.0, repeat=repeat) for repeat in range(4)]
    after = [row("a", float(repeat == 0), repeat=repeat) for repeat in range(4)]
    seen = Evidence(accepted=of_rows(before), candidate=of_rows(after), protected=frozenset("a"))
    assert not decide_on(Protected(), seen).accepted


def test_a_protected_case_that_was_not_run_is_rejected() -> None:
    answer = decide_on(Protected(("z", "a")), evidence({"a": 1.0}, {"a": 1.0}))
    assert (answer.accepted, answer.reason) == (False, "protected, but not run: 'z'")


ALL_POLICIES = [
    AnyGain(),
    MinGain(0),
    NoRegression(),
    Protected(),
    AnyOf(Bare()),
    AllOf(Bare()),
    YES | MinGain(0),
    YES & Bare(),
]


@pytest.mark.parametrize("policy", ALL_POLICIES, ids=repr)
def test_no_policy_accepts_an_unreliable_candidate(policy: AcceptancePolicy) -> None:
    seen = Evidence(accepted=of(scores(0, 0, 0), limit=0.25), candidate=of(scores(1, 1, None), limit=0.25))
    answer = decide_on(policy, seen)
    assert not answer.accepted
    assert answer.reason == "the candidate is unreliable: 33.3% of its runs or scores failed, the limit is 25.0%"


@pytest.mark.parametrize("policy", ALL_POLICIES, ids=repr)
def test_no_policy_accepts_against_an_unreliable_baseline(policy: AcceptancePolicy) -> None:
    seen = Evidence(accepted=of(scores(None, 0), limit=0.25), candidate=of(scores(1, 1), limit=0.25))
    answer = decide_on(policy, seen)
    assert not answer.accepted
    assert answer.reason.startswith("the accepted profile is unreliable: 50.0%")


@pytest.mark.parametrize("policy", ALL_POLICIES, ids=repr)
def test_no_policy_accepts_a_candidate_without_a_figure(policy: AcceptancePolicy) -> None:
    answer = decide_on(policy, evidence(scores(0, 0), scores(None, None)))
    assert (answer.accepted, answer.delta) == (False, None)
    assert answer.reason == "the candidate has no mean_score: none of its 2 cases could be scored"


def test_decide_applies_the_same_rule_to_a_custom_policy() -> None:
    assert decide(Bare(), FLAT) == FLAT.accept("bare says yes")
    assert decide(Bare(), evidence(scores(1), scores(None))) != decide(Bare(), FLAT)


def test_a_policy_that_returns_a_bool_is_an_error_that_says_what_to_return() -> None:
    class Yes:
        def decide(self, evidence: Evidence) -> bool:  # noqa: ARG002
            return True

    with pytest.raises(SetupError, match=r"Yes\(\) answered True; return an AcceptanceDecision or MoreEvidence"):
        AllOf(Yes()).decide(FLAT)  # type: ignore[arg-type]


# Combining


def test_and_rejects_with_the_reasons_of_all_that_reject_in_order() -> None:
    seen = evidence(scores(1.0, 0.0), scores(0.0, 0.5))
    answer = decide_on(NoRegression() & MinGain() & YES, seen)
    assert answer == AcceptanceDecision(
        accepted=False, delta=-0.25, reason="passed before and no longer: 'c00'; gain -0.250 is below 0.005"
    )
    assert decide_on(YES & MinGain(0), FLAT).reason == "yes; gain +0.000 reaches 0"


def test_or_accepts_with_the_reasons_of_those_that_accept() -> None:
    assert decide_on(NO | YES | MinGain(0), FLAT) == FLAT.accept("yes; gain +0.000 reaches 0")
    assert decide_on(NO | MinGain(), FLAT) == FLAT.reject("no; gain +0.000 is below 0.005")


def test_a_decisive_answer_wins_over_a_request_for_more_evidence() -> None:
    assert decide_on(MORE & NO, FLAT).reason == "no"
    assert decide_on(MORE | YES, FLAT).reason == "yes"


@pytest.mark.parametrize("combined", [MORE & YES, MORE | NO], ids=repr)
def test_a_request_for_more_evidence_wins_over_an_answer_that_is_not_decisive(combined: AllOf | AnyOf) -> None:
    assert combined.decide(FLAT) == MoreEvidence(cases=("a", "b"), repeats=2, reason="more")


def test_of_several_requests_the_cheapest_comes_first() -> None:
    one, train = Says(MoreEvidence(cases=("c",), repeats=3)), Says(MoreEvidence(repeats=9, on="train"))
    everything = Says(MoreEvidence(repeats=1))
    assert (MORE & one).decide(FLAT) == one.answer
    assert (everything | MORE).decide(FLAT) == MORE.answer
    assert (MORE & everything & train & one).decide(FLAT) == train.answer


def kind_of(policy: AcceptancePolicy) -> bool | MoreEvidence:
    """What a policy decides, without the reason."""
    answer = policy.decide(FLAT)
    return answer.accepted if isinstance(answer, AcceptanceDecision) else replace(answer, reason="")


@given(a=policies, b=policies, c=policies)
def test_and_and_or_are_associative(a: Says, b: Says, c: Says) -> None:
    assert ((a & b) & c) == (a & (b & c)) == AllOf(a, b, c)
    assert ((a | b) | c) == (a | (b | c)) == AnyOf(a, b, c)
    assert kind_of(a & AnyOf(b & c)) == kind_of(AnyOf(a & b) & c) == kind_of(a & b & c)
    assert kind_of(a | AllOf(b | c)) == kind_of(AllOf(a | b) | c) == kind_of(a | b | c)


@given(parts=st.lists(policies, min_size=1, max_size=5))
def test_a_decision_does_not_depend_on_the_order_of_the_parts(parts: list[Says]) -> None:
    assert kind_of(AllOf(*parts)) == kind_of(AllOf(*parts[::-1]))
    assert kind_of(AnyOf(*parts)) == kind_of(AnyOf(*parts[::-1]))


def test_a_class_with_only_decide_combines_from_either_side() -> None:
    assert repr(Bare() & MinGain()) == "Bare() & MinGain(0.005)"
    assert repr(MinGain(0.01) | Bare()) == "MinGain(0.01) | Bare()"
    assert decide_on(Bare() | NO, FLAT).reason == "bare says yes"


def test_a_repr_reads_like_the_expression_and_evaluates_to_the_same_policy() -> None:
    written = {
        "MinGain(0.005)": MinGain(),
        "MinGain(0.005) & NoRegression()": MinGain() & NoRegression(),
        "MinGain(0.1) & (NoRegression() | Protected())": MinGain(0.1) & (NoRegression() | Protected()),
        "MinGain(0.1) & NoRegression() | Protected(('a', 'b'))": MinGain(0.1) & NoRegression() | Protected(("b", "a")),
    }
    assert {repr(policy): policy for policy in written.values()} == written
    names = {"MinGain": MinGain, "NoRegression": NoRegression, "Protected": Protected}
    assert all(eval(text, names) == policy for text, policy in written.items())


def test_the_parts_of_a_policy_are_yielded_in_order() -> None:
    policy = MinGain() & (NoRegression() | Protected(("a",)))
    assert list(iter_policies(policy)) == [MinGain(), NoRegression(), Protected(("a",))]


# Invalid policies


@pytest.mark.parametrize("wrong", [-0.1, 1.5, math.nan, math.inf, "0.1", True, None])
def test_an_invalid_minimum_gain_is_refused(wrong: float) -> None:
    with pytest.raises(SetupError, match=r"give a number from 0 to 1, such as 0\.005"):
        MinGain(wrong)


def test_one_string_is_not_a_list_of_protected_cases() -> None:
    with pytest.raises(SetupError, match=r"the protected cases are 'a'; give a tuple: \('a',\)"):
        Protected("a")  # type: ignore[arg-type]


def test_a_request_for_less_than_one_repeat_is_refused() -> None:
    with pytest.raises(SetupError, match="asks for 0 more repeats; give 1 or more"):
        MoreEvidence(repeats=0)


def test_only_policies_can_be_combined() -> None:
    with pytest.raises(SetupError, match="is not a policy; give an object with the method"):
        MinGain() & 0.005  # type: ignore[operator]
    with pytest.raises(SetupError, match="is not a policy"):
        AllOf(MinGain)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match=r"AllOf\(\) combines no policies"):
        AllOf()
