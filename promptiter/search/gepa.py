"""GepaSearch: the search of GEPA, on the engine and the strategies of the `gepa` library.

gepa selects a parent from its frontier, runs it on a mini-batch of train cases, has some of its components rewritten,
and keeps the child on the frontier if it beats its parent there. Here each iteration is a round of the run: journal,
cache, budgets and stop policies are those of any search, and what becomes the best profile goes through its acceptance
and its final test. The frontier needs the scores of the validation cases, so the search reads validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

from promptiter.backprop.backward_pass import MIN_SUPPORT, as_attributor, find_blaming_stage
from promptiter.backprop.iteration_record import SearchStopChecked
from promptiter.backprop.llm.reflector import LLMReflector
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.concurrency import call_any
from promptiter.engine.outline import SearchOutline
from promptiter.engine.session import Session
from promptiter.errors import SetupError, StageError
from promptiter.llm.gateway import Gateway
from promptiter.numbers import check_count, is_number
from promptiter.registry import OFFLINE_STAGES
from promptiter.runlog.results import RunShape
from promptiter.search.blame import BlameFinder
from promptiter.search.gepa_adapter import IterationWatcher, SessionAdapter
from promptiter.search.gepa_library import (
    MINIBATCH,
    CandidateSelection,
    FrontierType,
    GepaSettings,
    ModuleSelector,
    check_gepa,
    run_engine,
)
from promptiter.search.gepa_run import GepaRun
from promptiter.search.propose import PatchProposer
from promptiter.search.reflections import Reflections
from promptiter.search.stage_failures import StageFailures
from promptiter.search.stage_models import find_model, find_stage_problems
from promptiter.search.task_portal import TaskPortal
from promptiter.stages.contracts import Aggregator, Attributor, Backwarder
from promptiter.stages.optimizer import Optimizer
from promptiter.stages.roles import check_stages
from promptiter.structure import StructureSnapshot
from promptiter.value_text import encode_value
from promptiter.wording import join_names

REWRITES: Mapping[ModuleSelector, Literal["one", "blamed", "all"]] = {
    "round_robin": "one",
    "random": "one",
    "blame": "blamed",
    "all": "all",
}
"""Which texts an iteration rewrites, for the forecast."""

IDLE_PASSES, FEWEST_IDLE = 2, 10
"""The search ends if nothing is proposed in this number of passes over the train cases for each component, and in at
least this number of iterations."""

MAX_HISTORY = 5
"""The most earlier answers to a case that a reflection model can be shown."""


@dataclass(eq=False)
class GepaSearch:
    """The search of GEPA. The options have the names that they have in gepa and in optimizer.json.

    `module_selector` chooses the components that an iteration rewrites: one after the other, `all`, a `random` one, or
    those that a backward pass of the stages finds to `blame` for the failures of the mini-batch. The `reflection_model`
    rewrites them after looking at the cases, with `reflection_options`; without one, the optimizer stage does.

    With `cache_evaluation` a candidate does not run a case twice; without it, each mini-batch is a new repeat. A random
    `seed` of None is that of the run. `max_candidate_proposals` iterations or `max_tracked_candidates` candidates in
    the pool end the search, and so do `extra_stop_callbacks`: objects of gepa that get its state. `extra_callbacks` get
    its events. Both are called in the thread of gepa or one like it. It also ends if it has nothing left to propose.
    """

    backwarder: Backwarder | Attributor | None = None
    aggregator: Aggregator | None = None
    optimizer: Optimizer | None = None
    _: KW_ONLY
    reflection_model: str | None = None
    reflection_options: dict[str, Any] | None = None
    candidate_selection_strategy: CandidateSelection = "pareto"
    frontier_type: FrontierType = "instance"
    module_selector: ModuleSelector = "round_robin"
    reflection_minibatch_size: int | None = None
    reflection_history_top_k: int = 2
    perfect_score: float = 1.0
    skip_perfect_score: bool = True
    use_merge: bool = False
    max_merge_invocations: int = 5
    merge_val_overlap_floor: int = 5
    cache_evaluation: bool = True
    track_best_outputs: bool = False
    max_candidate_proposals: int | None = None
    max_tracked_candidates: int | None = None
    seed: int | None = None
    extra_stop_callbacks: Sequence[Callable[[Any], bool]] = ()
    extra_callbacks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        check_stages(backwarder=self.backwarder, aggregator=self.aggregator, optimizer=self.optimizer)
        _check_choice(self.candidate_selection_strategy, "candidate_selection_strategy", get_args(CandidateSelection))
        _check_choice(self.frontier_type, "frontier_type", get_args(FrontierType))
        _check_choice(self.module_selector, "module_selector", get_args(ModuleSelector))
        for name in ("reflection_minibatch_size", "max_candidate_proposals", "max_tracked_candidates"):
            if (count := getattr(self, name)) is not None:
                check_count(count, name)
        check_count(self.max_merge_invocations, "max_merge_invocations", least=0)
        check_count(self.merge_val_overlap_floor, "merge_val_overlap_floor")
        check_count(self.reflection_history_top_k, "reflection_history_top_k", least=0)
        if self.reflection_history_top_k > MAX_HISTORY:
            raise SetupError(
                f"reflection_history_top_k is {self.reflection_history_top_k}; give a number from 0 to {MAX_HISTORY}"
            )
        if not is_number(self.perfect_score):
            raise SetupError(f"perfect_score is {self.perfect_score!r}; give a number, such as 1.0")
        if self.reflection_options and self.reflection_model is None:
            raise SetupError("reflection_options are those of a reflection_model; give one, or remove them")
        self.attributor = as_attributor(self.backwarder)
        self._aggregator = self.aggregator or SupportAggregator()
        self._optimizer: Optimizer = self.optimizer or OFFLINE_STAGES.get("optimizer")()
        self.reflector = None
        if self.reflection_model is not None:
            self.reflector = LLMReflector(self.reflection_model, model_options=self.reflection_options)

    async def search(self, session: Session) -> None:
        check_gepa()
        components = self._find_components(session)
        reflections = self._build_reflections(session, components)
        validation = await session.read_validation()
        assert validation.state.baseline is not None, "the baseline is validated before a search starts"
        run = GepaRun(
            session,
            reflections,
            validation=validation.eval_set,
            baseline=validation.state.baseline.validation,
            reuses=self.cache_evaluation,
        )
        portal = TaskPortal()
        adapter, watcher = SessionAdapter(run, portal), IterationWatcher(run, portal)
        profile = session.baseline.profile
        texts = {name: encode_value(profile.value(name, session.snapshot)) for name in components}
        train, valset = run.examples
        most_idle = max(FEWEST_IDLE, IDLE_PASSES * len(components) * math.ceil(len(train) / self._minibatch))
        await portal.serve(
            lambda: run_engine(
                self._build_settings(session, cases=len(train)),
                seed_candidate=texts,
                trainset=train,
                valset=valset,
                adapter=adapter,
                select_blamed=adapter.select_blamed,
                should_stop=lambda state: portal.call(
                    lambda: self._should_stop(session, state, is_idle=run.idle >= most_idle)
                ),
                callbacks=[watcher, *self.extra_callbacks],
            )
        )
        if reflections.has_failed:
            raise StageError("every reflection failed; the problems of the run say why")

    def outline(self) -> SearchOutline:
        """What a round may call, for the forecast."""
        blames = self.module_selector == "blame" or self.reflector is None
        return SearchOutline(
            minibatch=self._minibatch,
            backwarder=find_model(find_blaming_stage(self.attributor)) if blames else None,
            aggregator=find_model(self._aggregator) if blames else None,
            optimizer=find_model(self._writer),
            reads_validation=True,
            rewrites=REWRITES[self.module_selector],
        )

    def find_setup_problems(self, gateway: Gateway) -> list[str]:
        """One line if gepa is not installed, and for each model that cannot be called, or whose price is unknown."""
        found: list[str] = []
        try:
            check_gepa()
        except SetupError as error:
            found.append(str(error))
        stages = (find_blaming_stage(self.attributor), self._aggregator, self._writer)
        return [*found, *find_stage_problems(stages, gateway)]

    def find_kept_targets(
        self,
        snapshot: StructureSnapshot,
        targets: Collection[str],
        *,
        shape: RunShape,  # noqa: ARG002
    ) -> set[str]:
        """Models without choices: they have no other value."""
        surfaces = map(snapshot.surface, targets)
        return {each.id for each in surfaces if each.type == "model" and not each.is_setting}

    @property
    def _minibatch(self) -> int:
        return self.reflection_minibatch_size or MINIBATCH

    @property
    def _writer(self) -> Optimizer | LLMReflector:
        return self._optimizer if self.reflector is None else self.reflector

    def _find_components(self, session: Session) -> list[str]:
        """The targets, in the order of the structure. A model without choices has no other value."""
        kept = self.find_kept_targets(session.snapshot, session.targets, shape=session.shape)
        targets = [each.id for each in session.snapshot.surfaces if each.id in session.targets]
        components = [each for each in targets if each not in kept]
        if not components:
            names = join_names(targets, limit=5)
            raise SetupError(f"GEPA has nothing to change: {names} has no choices; give the node models=(...)")
        if self.use_merge and len(components) < 2:
            session.report("use_merge has no effect: a merge needs at least two targets")
        return components

    def _build_reflections(self, session: Session, components: Sequence[str]) -> Reflections:
        failures = StageFailures(session)
        return Reflections(
            session,
            components,
            finder=BlameFinder(session, self.attributor, self._aggregator, failures=failures, min_support=MIN_SUPPORT),
            patcher=PatchProposer(session, self._optimizer, failures=failures, adds_examples=False),
            reflector=self.reflector,
            history_top_k=self.reflection_history_top_k,
        )

    def _build_settings(self, session: Session, *, cases: int) -> GepaSettings:
        return GepaSettings(
            candidate_selection=self.candidate_selection_strategy,
            frontier_type=self.frontier_type,
            module_selector=self.module_selector,
            minibatch=min(self._minibatch, cases),
            use_merge=self.use_merge,
            max_merge_invocations=self.max_merge_invocations,
            merge_val_overlap_floor=self.merge_val_overlap_floor,
            perfect_score=self.perfect_score,
            skip_perfect_score=self.skip_perfect_score,
            track_best_outputs=self.track_best_outputs,
            seed=session.seed if self.seed is None else self.seed,
        )

    async def _should_stop(self, session: Session, state: Any, *, is_idle: bool) -> bool:
        """Ask the policies of the run, then the limits of gepa, then the callbacks, whose answer is recorded."""
        if await session.should_stop():
            return True
        limit = "nothing_proposed" if is_idle else self._find_limit(state)
        if limit:
            await session.note(SearchStopChecked(reason=limit))
            return True
        if not self.extra_stop_callbacks:
            return False

        async def ask() -> SearchStopChecked:
            for each in self.extra_stop_callbacks:
                if await call_any(each, state):
                    return SearchStopChecked(reason=str(getattr(each, "reason", None) or type(each).__name__))
            return SearchStopChecked()

        return bool((await session.record(SearchStopChecked, ask, request=session.round)).reason)

    def _find_limit(self, state: Any) -> str:
        if self.max_candidate_proposals is not None and state.i + 1 >= self.max_candidate_proposals:
            return "max_candidate_proposals"
        if self.max_tracked_candidates is not None and len(state.program_candidates) >= self.max_tracked_candidates:
            return "max_tracked_candidates"
        return ""


def _check_choice(value: object, name: str, known: Sequence[str]) -> None:
    if value not in known:
        raise SetupError(f"{name} is {value!r}; give {join_names([repr(each) for each in known])}")
