import sys
from collections.abc import Callable, Mapping
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from promptiter.backprop.trial_record import NumericProposal
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.search.descent.axes import Axis
from promptiter.search.descent.numeric_search import OptunaSearch
from promptiter.search.descent.study import Sampler, Study, StudySettings, check_optuna
from traces.model import Json

pytestmark = pytest.mark.slow

AXES = (
    Axis(surface_id="a#parameter.temperature", kind="number", minimum=0.0, maximum=2.0),
    Axis(surface_id="a#parameter.rate", kind="number", minimum=1e-4, maximum=1.0, is_log=True),
    Axis(surface_id="a#parameter.top_k", kind="integer", minimum=3, maximum=20),
    Axis(surface_id="a#parameter.chunk", kind="integer", minimum=1, maximum=1024, is_log=True),
    Axis(surface_id="a#model", kind="choice", choices=("small", "medium", "large")),
    Axis(surface_id="a#parameter.search.enabled", kind="choice", choices=(False, True)),
)
SPACE: Mapping[str, BaseDistribution] = {
    "a#parameter.temperature": FloatDistribution(0.0, 2.0),
    "a#parameter.rate": FloatDistribution(1e-4, 1.0, log=True),
    "a#parameter.top_k": IntDistribution(3, 20),
    "a#parameter.chunk": IntDistribution(1, 1024, log=True),
    "a#model": CategoricalDistribution(("small", "medium", "large")),
    "a#parameter.search.enabled": CategoricalDistribution((False, True)),
}


def measure(params: Mapping[str, Any]) -> float | None:
    """A loss that depends on every axis; some points fail."""
    if params["a#parameter.top_k"] == 7:
        return None
    distance = (params["a#parameter.temperature"] - 0.7) ** 2 + abs(params["a#parameter.top_k"] - 12) / 20
    wrong = params["a#model"] != "medium"
    return float(
        distance
        + wrong
        + params["a#parameter.rate"]
        + params["a#parameter.chunk"] / 1024
        + params["a#parameter.search.enabled"]
    )


def ask_optuna(sampler: Any, *, trials: int, batch: int) -> list[dict[str, Any]]:
    """What plain Optuna proposes."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    found: list[dict[str, Any]] = []
    while len(found) < trials:
        asked = [study.ask(dict(SPACE)) for _ in range(min(batch, trials - len(found)))]
        for trial in asked:
            found.append(dict(trial.params))
            loss = measure(trial.params)
            if loss is None:
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, loss)
    return found


def ask_study(settings: StudySettings, *, seed: int, trials: int, batch: int) -> list[dict[str, Json]]:
    study = Study("numeric-phase-1", AXES, seed=seed, settings=settings)
    found: list[dict[str, Json]] = []
    while len(found) < trials:
        points = study.ask(min(batch, trials - len(found)))
        study.adopt(points)
        study.tell([measure(each.params) for each in points])
        found += [dict(each.params) for each in points]
    return found


def build_sampler(name: Sampler, seed: int, *, multivariate: bool) -> optuna.samplers.BaseSampler:
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=10, n_ei_candidates=24, multivariate=multivariate)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(
    ("sampler", "multivariate"), [("tpe", True), ("tpe", False), ("random", True)], ids=["tpe", "independent", "random"]
)
def test_a_study_proposes_what_plain_optuna_proposes(sampler: Sampler, multivariate: bool, batch: int) -> None:
    settings = StudySettings(sampler=sampler, multivariate=multivariate)
    for seed in (0, 43):
        plain = ask_optuna(build_sampler(sampler, seed, multivariate=multivariate), trials=30, batch=batch)

        assert ask_study(settings, seed=seed, trials=30, batch=batch) == plain


def test_a_study_explains_its_points_once_it_models() -> None:
    study = Study("s", AXES, seed=1, settings=StudySettings(startup_trials=3))
    points: list[NumericProposal] = []
    for _ in range(6):
        points += study.ask(1)
        study.tell([measure({**points[-1].params, "a#parameter.top_k": 12})])

    assert [each.score is None for each in points] == [True, True, True, False, False, False]
    assert {each.seed for each in points} == {1}
    last = points[-1]
    assert (last.observations, last.candidates_evaluated, last.number) == (5, 24, 5)
    assert last.quantile == 0.2
    assert last.score is not None
    assert last.score > 0
    assert last.expected_improvement is not None
    assert last.expected_improvement >= 0
    assert {*last.axes} == {*SPACE}
    assert all(each.good > 0 and each.bad > 0 for each in last.axes.values())


def test_recorded_points_win_over_what_the_sampler_proposes_now() -> None:
    def run(change: Callable[[float], float]) -> list[Json]:
        axis = Axis(surface_id="x", kind="number", minimum=0.0, maximum=1.0)
        study = Study("s", [axis], seed=5, settings=StudySettings(startup_trials=2))
        told: list[Json] = []
        for _ in range(4):
            [point] = study.ask(1)
            value = change(float(point.params["x"]))
            study.adopt([type(point)(study_id="s", number=point.number, params={"x": value})])
            study.tell([(value - 0.3) ** 2])
            told.append(value)
        complete = study._study.get_trials(states=(TrialState.COMPLETE,))
        assert [each.params["x"] for each in complete] == told
        return told

    assert run(lambda value: value) != run(lambda value: value / 2)


def test_choices_that_are_lists_keep_their_values() -> None:
    axis = Axis(surface_id="x", kind="choice", choices=(["a"], ["a", "b"]))
    study = Study("s", [axis], seed=0, settings=StudySettings(sampler="random"))

    [point] = study.ask(1)
    study.adopt([point])
    study.tell([0.5])

    assert point.params["x"] in axis.choices


def test_a_study_says_nothing_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    Study("s", AXES, seed=0, settings=StudySettings()).ask(2)

    assert capfd.readouterr() == ("", "")


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(SetupError, match=r"pip install 'promptiter\[optuna\]'"):
        check_optuna()
    [problem] = OptunaSearch().find_setup_problems(Gateway())
    assert problem.startswith("this search needs optuna")
