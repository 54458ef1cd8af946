from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from promptiter.backprop.trial_record import Trial, TrialDetails, get_trials, list_phases
from promptiter.engine.request import RunRequest
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.policies.acceptance import AnyGain
from promptiter.policies.final_test import FinalTest
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.profile import Profile
from promptiter.registry import SEARCHES
from promptiter.runlog.events import Event
from promptiter.runlog.results import RunResult
from promptiter.runs.decisions import decide_again
from promptiter.runs.trial_phases import describe_trial
from promptiter.search.descent.numeric_search import OptunaSearch, RandomSearch
from promptiter.search.descent.search import CoordinateDescent
from promptiter.stages.diagnosis import DiagnoseRequest, Diagnosis
from tests.worlds import quadratic_world
from tests.worlds.quadratic_world import (
    AXES,
    REACHED,
    RULE,
    SETTINGS,
    TEXT,
    QuadraticAgent,
    ReasonReader,
    RuleAdder,
    archive,
    build_descent,
    build_engine,
    build_request,
    make_cases,
)

pytestmark = pytest.mark.slow


def run(search: object, *, seed: int = 0, request: RunRequest | None = None) -> tuple[RunResult, QuadraticAgent]:
    engine = build_engine(search, seed=seed)  # type: ignore[arg-type]
    result = engine.run_sync(request or build_request())
    assert isinstance(engine.agent, QuadraticAgent)
    return result, engine.agent


def list_trials(result: RunResult) -> list[Trial]:
    return [trial for each in result.rounds for trial in get_trials(each)]


@pytest.fixture(scope="module")
def descent() -> tuple[RunResult, QuadraticAgent]:
    return run(build_descent(), seed=1)


def test_coordinate_descent_finds_the_rule_and_the_settings(descent: tuple[RunResult, QuadraticAgent]) -> None:
    result, agent = descent

    assert agent.find_quality(result.accepted_profile) >= REACHED
    assert RULE in str(result.accepted_profile.value(TEXT, agent.snapshot))


def test_phases_alternate_and_say_why_they_ended(descent: tuple[RunResult, QuadraticAgent]) -> None:
    phases = [*list_phases(descent[0].rounds)]

    assert [each.phase for each in phases] == ["numeric", "textual"] * (len(phases) // 2)
    assert [each.cycle for each in phases[::2]] == [*range(1, len(phases) // 2 + 1)]
    assert {each.ended for each in phases[::2]} <= {"max_trials", "patience", "converged"}
    # Points of a study differ in their last digits from processor to processor, so every train case may pass or not.
    assert {each.ended for each in phases[1::2]} <= {"max_trials", "patience", "exhausted"}
    assert [each.study_id for each in phases[:3]] == ["numeric-phase-1", "", "numeric-phase-2"]


def count_accepted(result: RunResult) -> list[int]:
    """The accepted trials of each cycle."""
    phases = [*list_phases(result.rounds)]
    return [first.accepted + second.accepted for first, second in zip(phases[::2], phases[1::2], strict=True)]


@pytest.mark.parametrize("dry_cycles", [1, 2])
def test_dry_cycles_in_a_row_end_the_search(dry_cycles: int) -> None:
    result, _ = run(build_descent(dry_cycles=dry_cycles, max_cycles=8, numeric_max_trials=4), seed=1)
    accepted = count_accepted(result)

    assert len(accepted) < 8
    assert accepted[-dry_cycles:] == [0] * dry_cycles
    assert accepted[-dry_cycles - 1]
    assert result.stop is not None
    assert result.stop.reason == "exhausted"


def test_without_numbers_one_dry_cycle_ends_the_search() -> None:
    result, _ = run(build_descent(), request=build_request(targets=(TEXT,)))

    assert [each.accepted > 0 for each in list_phases(result.rounds)] == [True, False]


@pytest.mark.parametrize(("count_startup", "attempts"), [(False, 6), (True, 2)])
def test_startup_trials_count_for_the_patience_only_on_request(count_startup: bool, attempts: int) -> None:
    options = {"startup_trials": 4, "numeric_patience": 2, "convergence": 0.0, "count_startup": count_startup}
    request = replace(build_request(targets=AXES), acceptance=SigmaGain(accept_sigma=1000.0))
    result, _ = run(build_descent(**options, max_cycles=1), request=request)
    [phase] = list_phases(result.rounds)

    assert (phase.attempts, phase.ended) == (attempts, "patience")


def run_from_the_best_numbers(monkeypatch: pytest.MonkeyPatch, **options: object) -> RunResult:
    """A run that starts with the best numbers for a text without the rule. They are too good for the rule alone."""
    monkeypatch.setattr(quadratic_world, "CAP", 0.9)
    best = {
        f"archive#parameter.{name}": each.low * (each.high / each.low) ** each.best[0]
        if each.is_log
        else each.low + (each.high - each.low) * each.best[0]
        for name, each in SETTINGS.items()
    }
    best = {name: round(value) if "top_k" in name or "chars" in name else value for name, value in best.items()}
    request = replace(
        build_request(), initial_profile=Profile(structure_id=archive.describe().structure_id, overrides=best)
    )
    return run(build_descent(**options), seed=1, request=request)[0]


def test_a_rejected_text_is_tried_with_other_numbers_after_a_dry_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_from_the_best_numbers(monkeypatch, max_cycles=2, numeric_max_trials=12)
    trials = list_trials(result)
    rejected = next(each for each in trials if each.candidate is not None and each.phase == "textual")
    joint = [each for each in trials if each.cycle == 2 and each.phase == "numeric"]
    accepted = next(each for each in joint if each.is_accepted)
    before = [each for each in joint if each.number < accepted.number]

    assert count_accepted(result)[0] == 0
    assert rejected.changed == (TEXT,)
    assert all(TEXT in each.changed and each.textual == rejected.textual for each in (*before, accepted))
    assert not any(TEXT in each.changed or each.textual for each in joint if each.number > accepted.number)
    assert describe_trial(accepted).startswith(f"{TEXT} with min_score ")
    assert RULE in str(result.accepted_profile.overrides[TEXT])


def test_without_a_second_dry_cycle_texts_and_numbers_change_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_from_the_best_numbers(monkeypatch, dry_cycles=1, numeric_max_trials=5)

    assert count_accepted(result) == [0]
    assert not any(each.numeric and each.textual for each in list_trials(result))


def test_every_accepted_trial_is_the_start_of_the_next(descent: tuple[RunResult, QuadraticAgent]) -> None:
    trials = list_trials(descent[0])
    parent = trials[0].parent
    for each in trials:
        assert each.parent == parent
        parent = each.candidate if each.is_accepted and each.candidate is not None else parent

    assert parent == descent[0].accepted_profile.digest
    assert [each.number for each in trials] == [*range(1, len(trials) + 1)]


def test_no_case_runs_twice_on_train_for_the_same_profile(descent: tuple[RunResult, QuadraticAgent]) -> None:
    seen: set[tuple[str, str, int]] = set()
    for each in descent[0].rounds:
        for evaluation in each.all_evaluations:
            if evaluation.eval_set_id == "train":
                runs = {(evaluation.profile_digest, row.case_id, row.repeat) for row in evaluation.rows}
                assert not runs & seen
                seen |= runs


def test_the_gains_of_the_phases_add_up_to_the_whole(descent: tuple[RunResult, QuadraticAgent]) -> None:
    phases = [*list_phases(descent[0].rounds)]

    assert sum(each.gain for each in phases) == pytest.approx(phases[0].first.mean - phases[-1].last.mean)


def test_decisions_can_be_made_again_from_the_record() -> None:
    events: list[Event] = []

    class Collects:
        async def observe(self, event: Event) -> None:
            events.append(event)

    engine = build_engine(build_descent(max_cycles=2), seed=0)
    engine.run_sync(build_request(), observers=[Collects()])
    found = [each for each in decide_again(events) if each.again is not None]

    assert len(found) > 10
    assert all(each.again == each.recorded for each in found)


def test_optuna_alone_hits_the_cap_of_the_text() -> None:
    result, agent = run(OptunaSearch(trials=30), request=build_request(targets=AXES))

    assert agent.find_quality(result.accepted_profile) < REACHED
    assert len(list_trials(result)) == 30
    assert {each.phase for each in list_trials(result)} == {"numeric"}


def test_a_batch_is_one_round_and_the_best_of_it_is_decided_first() -> None:
    result, _ = run(RandomSearch(trials=10, batch_size=4), request=build_request(targets=AXES))
    details = [each.details for each in result.rounds if isinstance(each.details, TrialDetails)]

    assert [len(each.trials) for each in details] == [4, 4, 2]
    accepted = [[trial for trial in each.trials if trial.is_accepted] for each in details]
    assert all(len(each) <= 1 for each in accepted)
    assert len(accepted[0]) == 1


def test_a_policy_that_ignores_train_validates_only_what_gains_there() -> None:
    request = replace(build_request(targets=AXES), acceptance=AnyGain())
    result, _ = run(RandomSearch(trials=8), request=request)

    for each in result.rounds:
        [trial] = get_trials(each)
        assert each.candidate is not None
        is_validated = any(found.eval_set_id == "validation" for found in each.candidate.evaluations)
        assert is_validated is (trial.outcome in ("accepted", "holdout"))


def test_a_hold_out_that_runs_every_trial_is_run_every_trial() -> None:
    request = replace(build_request(targets=AXES), acceptance=SigmaGain(holdout="every_trial"))
    result, _ = run(RandomSearch(trials=5), request=request)

    for each in result.rounds:
        assert each.candidate is not None
        assert any(found.eval_set_id == "validation" for found in each.candidate.evaluations)


class Doubtful:
    def diagnose(self, request: DiagnoseRequest) -> Diagnosis:
        assert len(request.failing) <= 2
        return Diagnosis(failing_pattern="something", confidence=0.3)


def test_a_diagnosis_without_confidence_is_not_tried() -> None:
    search = CoordinateDescent(critic=Doubtful(), applier=RuleAdder(), phases=("textual",), failures_shown=2)
    result, agent = run(search, request=build_request(targets=(TEXT,)))

    assert [each.outcome for each in list_trials(result)] == ["low_confidence"] * 4
    assert [each.ended for each in list_phases(result.rounds)] == ["patience"]
    assert agent.case_runs == 6 + 18  # the baseline on validation, and once on train
    assert not any(each.candidates for each in result.rounds)


def test_the_critic_sees_the_last_rejected_trials_of_its_text() -> None:
    seen: list[Sequence[str]] = []

    class Guesses(ReasonReader):
        def diagnose(self, request: DiagnoseRequest) -> Diagnosis:
            seen.append([each.diagnosis.failing_pattern for each in request.rejected])
            return Diagnosis(failing_pattern=f"guess {len(seen)}", confidence=0.9)

    search = CoordinateDescent(
        critic=Guesses(), applier=RuleAdder(), phases=("textual",), rejections_shown=2, textual_patience=4
    )
    run(search, request=build_request(targets=(TEXT,)))

    assert seen[:4] == [[], ["guess 1"], ["guess 1", "guess 2"], ["guess 2", "guess 3"]]


def test_an_applier_that_repeats_a_rejected_text_is_not_run_again() -> None:
    class AlwaysTheSame:
        def diagnose(self, request: DiagnoseRequest) -> Diagnosis:  # noqa: ARG002
            return Diagnosis(failing_pattern="it is not helpful", confidence=0.9)

    search = CoordinateDescent(critic=AlwaysTheSame(), applier=RuleAdder(), phases=("textual",))
    result, _ = run(search, request=build_request(targets=(TEXT,)))
    outcomes = [each.outcome for each in list_trials(result)]

    assert outcomes[0] in ("no_gain", "noise")
    assert set(outcomes[1:]) == {"no_edit"}


def test_the_phase_ends_when_no_train_case_fails() -> None:
    request = build_request(targets=(TEXT,))
    easy = replace(request, initial_profile=None)
    search = CoordinateDescent(critic=ReasonReader(), applier=RuleAdder(), phases=("textual",))
    engine = build_engine(search, seed=0, passing=0.0)
    result = engine.run_sync(easy)

    assert [(each.ended, each.reason) for each in list_phases(result.rounds)] == [("exhausted", "no train case fails")]


def test_co_optimized_texts_must_be_targets() -> None:
    search = build_descent(co_optimize=[[TEXT, "archive#instructions"]])
    with pytest.raises(SetupError, match=r"archive#instructions"):
        run(search)


def test_max_rounds_of_the_request_still_limits_the_search() -> None:
    result, _ = run(build_descent(), request=replace(build_request(), max_rounds=3))

    assert len(result.rounds) == 3
    assert result.stop is not None
    assert result.stop.reason == "max_rounds"


def test_targets_without_numbers_are_an_error_of_a_numeric_search() -> None:
    with pytest.raises(SetupError, match=r"no target is a number with bounds.*archive#parameter\.temperature"):
        run(OptunaSearch(), request=build_request(targets=(TEXT,)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_cycles": 0}, "max_cycles is 0"),
        ({"min_confidence": 2}, "min_confidence is 2; give a number from 0 to 1"),
        ({"phases": ("numbers",)}, "phases is"),
        ({"sampler": "grid"}, "sampler is 'grid'; give 'tpe', 'random'"),
        ({"co_optimize": [["a"]]}, "co_optimize is"),
        ({"critic_prompt": "x.md"}, "critic_prompt is for a model as critic, and none is named"),
        ({"critic": "m", "critic_prompt": "missing.md"}, "critic_prompt: cannot read 'missing.md'"),
        ({"critic": object()}, "is not a critic"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        CoordinateDescent(**options)  # type: ignore[arg-type]


def test_searches_are_known_by_name() -> None:
    assert SEARCHES.get("coordinate_descent") is CoordinateDescent
    assert SEARCHES.get("optuna") is OptunaSearch
    assert SEARCHES.get("random") is RandomSearch


def test_the_final_test_confirms_what_coordinate_descent_found() -> None:
    request = replace(build_request(), test=make_cases("test", 12), final_test=FinalTest())
    result, _ = run(build_descent(max_cycles=2), request=request)

    assert result.verdict == "improved"


def test_cases_can_serve_as_train_and_validation() -> None:
    request = build_request()
    assert isinstance(request.train, EvalSet)
    one = replace(request, cases=request.train, train=None, validation=None)
    result, _ = run(build_descent(max_cycles=1), request=one)

    assert result.verdict != "invalid_eval"
    assert list_trials(result)


@pytest.mark.long
def test_coordinate_descent_reaches_what_numbers_alone_do_not() -> None:
    def count_reached(make: Callable[[], object], targets: tuple[str, ...]) -> int:
        runs = [run(make(), seed=seed, request=build_request(targets=targets)) for seed in range(10)]
        return sum(agent.find_quality(result.accepted_profile) >= REACHED for result, agent in runs)

    assert count_reached(build_descent, (TEXT, *AXES)) >= 9
    assert count_reached(OptunaSearch, AXES) <= 3
    assert count_reached(RandomSearch, AXES) <= 3
