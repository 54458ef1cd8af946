"""The only module that imports `gepa`: builds its engine with its own strategies, and runs it.

gepa writes nothing to disk, prints nothing, and takes all randomness from one seed. Of its parts only what draws in the
order of a set of strings is replaced, because that order differs from process to process: see `_MergeRandom`. Its cache
of evaluations is not used: it takes a train case for the validation case of the same number. Rows are known instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, TypeAlias

from promptiter.errors import SetupError

CandidateSelection: TypeAlias = Literal["pareto", "current_best", "epsilon_greedy", "top_k_pareto"]
FrontierType: TypeAlias = Literal["instance", "objective", "hybrid", "cartesian"]
ModuleSelector: TypeAlias = Literal["round_robin", "all", "random", "blame"]

MINIBATCH = 3
"""The cases of a mini-batch by default, as in gepa."""

EPSILON, TOP_K = 0.1, 5
"""The share of random parents of `epsilon_greedy`, and the candidates of `top_k_pareto`, as in gepa."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GepaSettings:
    """What gepa's engine is built with. `GepaSearch` describes each field."""

    candidate_selection: CandidateSelection
    frontier_type: FrontierType
    module_selector: ModuleSelector
    minibatch: int
    use_merge: bool
    max_merge_invocations: int
    merge_val_overlap_floor: int
    perfect_score: float
    skip_perfect_score: bool
    track_best_outputs: bool
    seed: int


def check_gepa() -> None:
    """Raise SetupError if gepa is not installed."""
    try:
        import gepa.api  # noqa: F401
    except ImportError as error:
        raise SetupError(f"the search 'gepa' needs gepa ({error}); run `pip install 'promptiter[gepa]'`") from error


def build_batch(
    *,
    outputs: Sequence[str],
    scores: Sequence[float],
    trajectories: Sequence[Any],
    objective_scores: Sequence[dict[str, float]],
    metric_calls: int,
) -> Any:
    """The result of an evaluation, as gepa wants it."""
    from gepa.core.adapter import EvaluationBatch

    return EvaluationBatch(
        outputs=list(outputs),
        scores=list(scores),
        trajectories=list(trajectories),
        objective_scores=list(objective_scores),
        num_metric_calls=metric_calls,
    )


def run_engine(
    settings: GepaSettings,
    *,
    seed_candidate: dict[str, str],
    trainset: Sequence[Any],
    valset: Sequence[Any],
    adapter: Any,
    select_blamed: Callable[[], list[str]],
    should_stop: Callable[[Any], bool],
    callbacks: Sequence[Any],
) -> Any:
    """Run gepa until `should_stop`, and return its state. Blocks."""
    from gepa.core.data_loader import ensure_loader
    from gepa.core.engine import GEPAEngine
    from gepa.logging.experiment_tracker import ExperimentTracker
    from gepa.proposer.reflective_mutation.reflective_mutation import ReflectiveMutationProposer
    from gepa.strategies.batch_sampler import EpochShuffledBatchSampler

    rng, logger, tracker = Random(settings.seed), _Log(), ExperimentTracker()
    train, validation = ensure_loader(list(trainset)), ensure_loader(list(valset))
    reflective = ReflectiveMutationProposer(
        logger=logger,
        trainset=train,
        adapter=adapter,
        candidate_selector=_build_candidate_selector(settings, rng),
        module_selector=_build_module_selector(settings, rng, select_blamed),
        batch_sampler=EpochShuffledBatchSampler(minibatch_size=settings.minibatch, rng=rng),
        perfect_score=settings.perfect_score,
        skip_perfect_score=settings.skip_perfect_score,
        experiment_tracker=tracker,
        callbacks=list(callbacks),
    )

    merge = _build_merge(settings, rng, adapter, validation, logger, callbacks) if settings.use_merge else None
    engine = GEPAEngine(
        adapter=adapter,
        run_dir=None,
        valset=validation,
        seed_candidate=seed_candidate,
        perfect_score=settings.perfect_score,
        seed=settings.seed,
        reflective_proposer=reflective,
        merge_proposer=merge,
        frontier_type=settings.frontier_type,
        logger=logger,
        experiment_tracker=tracker,
        callbacks=list(callbacks),
        track_best_outputs=settings.track_best_outputs,
        stop_callback=should_stop,
    )
    return engine.run()


def _build_merge(
    settings: GepaSettings, rng: Random, adapter: Any, validation: Any, logger: _Log, callbacks: Sequence[Any]
) -> Any:
    from gepa.proposer.merge import MergeProposer

    def evaluate(inputs: list[Any], candidate: dict[str, str]) -> tuple[Any, Any, Any]:
        found = adapter.evaluate(inputs, candidate)
        return found.outputs, found.scores, found.objective_scores

    return MergeProposer(
        logger=logger,
        valset=validation,
        evaluator=evaluate,
        use_merge=True,
        max_merge_invocations=settings.max_merge_invocations,
        val_overlap_floor=settings.merge_val_overlap_floor,
        rng=_MergeRandom(rng, seed=settings.seed),
        callbacks=list(callbacks),
    )


def _build_candidate_selector(settings: GepaSettings, rng: Random) -> Any:
    from gepa.strategies import candidate_selector as strategies

    match settings.candidate_selection:
        case "pareto":
            return strategies.ParetoCandidateSelector(rng=rng)
        case "current_best":
            return strategies.CurrentBestCandidateSelector()
        case "epsilon_greedy":
            return strategies.EpsilonGreedyCandidateSelector(epsilon=EPSILON, rng=rng)
        case "top_k_pareto":
            return strategies.TopKParetoCandidateSelector(k=TOP_K, rng=rng)


def _build_module_selector(settings: GepaSettings, rng: Random, select_blamed: Callable[[], list[str]]) -> Any:
    from gepa.strategies import component_selector as strategies

    def select(_state: Any, _runs: Any, _scores: Any, _number: int, candidate: dict[str, str]) -> list[str]:
        return select_blamed() if settings.module_selector == "blame" else [rng.choice(list(candidate))]

    match settings.module_selector:
        case "round_robin":
            return strategies.RoundRobinReflectionComponentSelector()
        case "all":
            return strategies.AllReflectionComponentSelector()
        case "random" | "blame":
            return select


class _Log:
    """gepa's log as ours. It quotes texts, so it is below INFO."""

    def log(self, message: str) -> None:
        _logger.debug("%s", message)


class _MergeRandom:
    """Draws for gepa's merges from the one stream, except for the parent whose text a merge takes if both are equal.

    gepa draws that for each component in the order of a set of names, which depends on the process. Here both parents
    of one merge always give the same answer, so that a resumed run merges the same texts.
    """

    def __init__(self, rng: Random, *, seed: int) -> None:
        self._rng = rng
        self._seed = seed

    def choice(self, parents: Sequence[int]) -> int:
        return Random(f"{self._seed} {list(parents)}").choice(parents)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name)
