from promptiter.engine.request import DEFAULT_ROUNDS, RunRequest
from promptiter.engine.round_limits import complete_limits, find_own_limit
from promptiter.policies.stopping import Patience, TargetScore
from promptiter.search.descent.numeric_search import OptunaSearch
from promptiter.search.descent.search import CoordinateDescent
from promptiter.search.rounds import BackpropRounds


def test_a_search_that_ends_by_itself_has_limits_of_its_own() -> None:
    completed = complete_limits(RunRequest(), OptunaSearch(trials=30, batch_size=4))

    assert (completed.max_rounds, completed.stop) == (9, TargetScore(1.0))


def test_a_perfect_loss_is_0() -> None:
    assert complete_limits(RunRequest(objective="weighted_loss"), OptunaSearch()).stop == TargetScore(0.0)


def test_limits_of_the_request_hold() -> None:
    completed = complete_limits(RunRequest(max_rounds=2, stop=Patience(1)), CoordinateDescent())

    assert (completed.max_rounds, completed.stop) == (2, Patience(1))


def test_other_searches_have_the_usual_limits() -> None:
    request = RunRequest()

    assert complete_limits(request, BackpropRounds()) is request
    assert request.round_limit == DEFAULT_ROUNDS
    assert find_own_limit(object()) is None
