"""Study: an Optuna study of one numeric phase, in batches. The only module that imports optuna.

It proposes what plain Optuna proposes with the same sampler, seed, batch size, names and distributions. Nothing is
stored: a resumed run asks and tells again. If another version of optuna then proposes other points, those that the run
recorded count (`adopt`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from promptiter.backprop.trial_record import AxisDensity, NumericProposal
from promptiter.errors import SetupError
from promptiter.search.descent.axes import Axis
from traces.model import Json

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler, TPESampler
    from optuna.trial import FrozenTrial, Trial

Sampler: TypeAlias = Literal["tpe", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """How points are sampled. `startup_trials` are random; then the best of `ei_candidates` is proposed."""

    sampler: Sampler = "tpe"
    startup_trials: int = 10
    ei_candidates: int = 24
    multivariate: bool = True


def check_optuna() -> None:
    """Raise SetupError if optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise SetupError("this search needs optuna: pip install 'promptiter[optuna]'") from error


def find_optuna_problems() -> list[str]:
    """One line if optuna is not installed."""
    try:
        check_optuna()
    except SetupError as error:
        return [str(error)]
    return []


class Study:
    """A study that minimizes a loss. Call `ask`, then `adopt` if the points are recorded, then `tell`."""

    def __init__(self, name: str, axes: Sequence[Axis], *, seed: int, settings: StudySettings) -> None:
        check_optuna()
        import optuna

        self.name = name
        self._seed = seed
        self._settings = settings
        self._sampler = _build_sampler(settings, seed)
        with _quiet():
            self._study = optuna.create_study(study_name=name, sampler=self._sampler, direction="minimize")
        self._coded = {each.surface_id: each for each in axes if _needs_code(each)}
        self._space = {each.surface_id: _build_distribution(each) for each in axes}
        self._open: list[tuple[Trial, dict[str, Any]]] = []
        self._asked = 0

    def ask(self, count: int) -> tuple[NumericProposal, ...]:
        """Propose points. All of a batch are proposed before a loss is reported."""
        assert not self._open, "tell the last points first"
        found = []
        for _ in range(count):
            trial = self._study.ask(self._space)
            self._open.append((trial, dict(trial.params)))
            params = self._decode(trial.params)
            point = NumericProposal(study_id=self.name, number=self._asked, params=params, seed=self._seed)
            try:
                found.append(self._explain(point, trial))
            except (AttributeError, ImportError, TypeError):  # densities are internal to optuna, and may change
                found.append(point)
            self._asked += 1
        return tuple(found)

    def adopt(self, recorded: Sequence[NumericProposal]) -> None:
        """Continue with the points that the run recorded, which are others if another version of optuna asks now."""
        self._open = [
            (trial, self._encode(point.params)) for (trial, _), point in zip(self._open, recorded, strict=True)
        ]

    def tell(self, losses: Sequence[float | None]) -> None:
        """Report the losses of the last points, in their order. A trial without one has failed."""
        from optuna.trial import TrialState, create_trial

        for (trial, params), loss in zip(self._open, losses, strict=True):
            if loss is None:
                self._study.tell(trial, state=TrialState.FAIL)
            elif params == trial.params:
                self._study.tell(trial, loss)
            else:
                self._study.tell(trial, state=TrialState.FAIL)
                self._study.add_trial(create_trial(params=params, distributions=self._space, value=loss))
        self._open = []

    def _explain(self, point: NumericProposal, trial: Trial) -> NumericProposal:
        """The point with the densities around it. Startup trials and random points have none."""
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        done = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        point = replace(point, observations=len(done))
        if not isinstance(self._sampler, TPESampler) or len(done) < max(1, self._settings.startup_trials):
            return point
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        others = [each for each in running if each.number != trial.number]
        densities = _Densities(self._study, self._sampler, done, others)
        axes = {name: densities.measure({name: self._space[name]}, trial.params) for name in self._space}
        if self._settings.multivariate:
            good, bad = densities.measure(self._space, trial.params)
        else:
            good, bad = (sum(each[side] for each in axes.values()) for side in (0, 1))
        share = len(densities.good) / len(done)
        return replace(
            point,
            quantile=round(share, 6),
            candidates_evaluated=self._settings.ei_candidates,
            score=_exp(good - bad),
            expected_improvement=densities.expect_improvement(good, bad, share),
            axes={
                name: AxisDensity(value=point.params[name], good=_exp(each[0]), bad=_exp(each[1]))
                for name, each in axes.items()
            },
        )

    def _decode(self, params: Mapping[str, Any]) -> dict[str, Json]:
        return {name: json.loads(value) if name in self._coded else value for name, value in params.items()}

    def _encode(self, params: Mapping[str, Json]) -> dict[str, Any]:
        return {name: json.dumps(value) if name in self._coded else value for name, value in params.items()}


class _Densities:
    """How dense the good and the bad trials are, as the sampler of the study models them. Logarithms throughout."""

    def __init__(
        self, study: Any, sampler: TPESampler, done: Sequence[FrozenTrial], running: Sequence[FrozenTrial]
    ) -> None:
        from optuna.samplers._tpe.sampler import _split_trials, default_gamma

        self._study = study
        self._sampler = sampler
        self.good, self._bad = _split_trials(study, [*done, *running], default_gamma(len(done)))
        self._limit = min((_loss_of(each) for each in self._bad if each.value is not None), default=None)

    def measure(self, space: Mapping[str, BaseDistribution], params: Mapping[str, Any]) -> tuple[float, float]:
        """The densities of good and of bad trials at a point."""
        import numpy as np

        at = {name: np.asarray([each.to_internal_repr(params[name])]) for name, each in space.items()}
        good, bad = (
            self._sampler._build_parzen_estimator(self._study, dict(space), trials, handle_below=is_good)
            for trials, is_good in ((self.good, True), (self._bad, False))
        )
        return float(good.log_pdf(at)[0]), float(bad.log_pdf(at)[0])

    def expect_improvement(self, good: float, bad: float, share: float) -> float | None:
        """How much lower than the best of the bad trials the loss at a point is expected to be.

        That is the chance of a good trial there, times how much lower good trials are on average.
        """
        if self._limit is None or not self.good:
            return None
        odds = math.exp(min(bad - good, 700.0)) * (1 - share) / share
        return round(fmean(max(0.0, self._limit - _loss_of(each)) for each in self.good) / (1 + odds), 12)


def _loss_of(trial: FrozenTrial) -> float:
    assert trial.value is not None, "only complete trials are compared"
    return trial.value


def _build_sampler(settings: StudySettings, seed: int) -> BaseSampler:
    from optuna.samplers import RandomSampler, TPESampler

    if settings.sampler == "random":
        return RandomSampler(seed=seed)
    return TPESampler(
        seed=seed,
        n_startup_trials=settings.startup_trials,
        n_ei_candidates=settings.ei_candidates,
        multivariate=settings.multivariate,
    )


def _build_distribution(axis: Axis) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.kind == "choice":
        choices: Any = [json.dumps(each) for each in axis.choices] if _needs_code(axis) else axis.choices
        return CategoricalDistribution(choices)
    if axis.kind == "integer":
        return IntDistribution(int(axis.minimum), int(axis.maximum), log=axis.is_log)
    return FloatDistribution(axis.minimum, axis.maximum, log=axis.is_log)


def _needs_code(axis: Axis) -> bool:
    """Whether its choices are lists or mappings, which optuna takes only as text."""
    return any(isinstance(each, list | dict) for each in axis.choices)


def _exp(logarithm: float) -> float:
    return float(f"{math.exp(max(-700.0, min(700.0, logarithm))):.6g}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without optuna's messages on the terminal about the study that it creates."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
