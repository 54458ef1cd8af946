"""RunPlan: what a run is made of, as far as costs are concerned. Read off an engine and a request; nothing is spent.

How many cases there are and which nodes ask which models is known. What a case run takes is recorded or estimated (see
expectation), and how the search goes is played through (see rehearsal).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from promptiter.engine.engine import Engine
from promptiter.engine.expectation import (
    CallUse,
    CaseUse,
    Recorded,
    Values,
    asking_nodes,
    case_tokens,
    cases_by_thumb,
    stage_call_by_thumb,
    text_tokens,
)
from promptiter.engine.request_checks import CheckedRequest, check_request
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.stats.final_test import plan_blocks
from promptiter.llm.budget import Caps
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Role
from promptiter.llm.prices import Price
from promptiter.policies.combine import parts_of, written
from promptiter.policies.paired_gain import PairedGain
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.policies.stopping import (
    Deadline,
    MaxCalls,
    MaxEvaluations,
    MaxTokens,
    MaxUsd,
    Patience,
    StopOnAny,
    StopPolicy,
    TargetScore,
)
from promptiter.profile import Profile
from promptiter.runlog.results import RunRequest
from promptiter.structure import StructureSnapshot

UNKNOWN_MODEL = "unknown"
"""Stands for the model of a stage or node that is the user's own code."""


StageRole: TypeAlias = Literal["backwarder", "aggregator", "optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutline:
    """What a round of a search may ask for. A stage's model is None if it asks none.

    Up to `passes` times a round goes from losses to patches, and runs up to `most_rerun` failed cases again; up to
    `most_checked` of its blame are checked by replays. A search for a goal besides the score has none of this: about
    `screens` times for each target it runs up to `screened` train cases, then it validates one candidate a round.
    """

    passes: int = 1
    most_rerun: int = 0
    most_checked: int = 0
    corrector: str | None = None
    backwarder: str | None = None
    aggregator: str | None = None
    optimizer: str | None = None
    screened: int | None = None
    screens: int = 0


@runtime_checkable
class OutlinedSearch(Protocol):
    """A search that can say what its rounds ask for. One that cannot is taken to run train and validation whole."""

    def outline(self) -> SearchOutline:
        """Called before a run, to forecast it; must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of one model: `calls` in one go (of one case run, one step, one surface), each taking `use`."""

    node_id: str
    model: str
    use: CallUse
    calls: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What ends a run between rounds; None does not."""

    target: float | None = None
    patience: int | None = None
    evaluations: int | None = None
    calls: int | None = None
    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimOutline:
    """What the end of a run may ask for: up to `blocks` blocks of so many repeats in both arms, and parts left out."""

    repeats: int
    blocks: int
    ablates: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run before it starts.

    `test` is how many cases are sealed, and `claim` None if none is made. `wishful` are the policies that may want to
    see more of a candidate than its validation. `below` has, for each node with a target surface, the nodes that may be
    paid again when it changes: itself and all that follow it. `reserved_tokens` is what a budget must have left for one
    call.
    """

    train: int
    validation: int
    test: int
    repeats: int
    final_test: ClaimOutline | None
    wishful: tuple[str, ...]
    max_rounds: int
    limits: Limits
    caps: Caps
    concurrency: int
    slots: int
    search: SearchOutline
    is_outlined: bool
    cases: tuple[CaseUse, ...]
    recorded: Recorded
    below: Mapping[str, frozenset[str]]
    models: Mapping[str, str]
    prices: Mapping[str, Price | None]
    stages: Mapping[StageRole, Asked]
    judges: tuple[Asked, ...]
    teacher: tuple[Asked, ...]
    user: Asked | None
    corrector: Asked | None
    reserved_tokens: float

    @property
    def is_recorded(self) -> bool:
        return bool(self.recorded.cases)

    def model_of(self, node_id: str) -> str:
        """The model that a node asks; a trace may know nodes that no structure names."""
        return self.models.get(node_id) or self.recorded.models.get(node_id) or UNKNOWN_MODEL

    def paid_again(self, patched: Iterable[str]) -> frozenset[str]:
        """The nodes that may be paid again when these are patched."""
        return frozenset().union(*(self.below[node_id] for node_id in patched))

    @property
    def reserved_usd(self) -> float:
        """The most that one call can cost, which has to fit before it is made."""
        known = (price for price in self.prices.values() if price is not None)
        return max((price.bound_usd(round(self.reserved_tokens)) for price in known), default=0.0)


def plan_of(engine: Engine, request: RunRequest, recorded: Recorded) -> RunPlan:
    """The plan of a run; RequestError if it could not be served."""
    snapshot, evaluator = engine.describe(), engine.evaluator_for(request)
    checked = check_request(request, snapshot, evaluator)
    cases = (*checked.train.cases, *checked.validation.cases)
    profile = request.initial_profile or Profile.baseline(snapshot)
    values = {surface_id: profile.value(surface_id, snapshot) for surface_id in snapshot.surface_ids}
    rng = Random(evaluator.options.seed)
    search = engine.search
    outline = search.outline() if isinstance(search, OutlinedSearch) else SearchOutline()
    sizes = _Sizes.of(cases, [values[target] for target in checked.targets], recorded)
    stages = _stages(outline, sizes)
    judges = _judges(evaluator, sizes)
    teacher = _teacher(request, checked, sizes)
    user = _user(evaluator, cases, sizes)
    corrector = sizes.asked("teacher", "", outline.corrector) if outline.corrector is not None else None
    models = {
        node.id: str(values.get(f"{node.id}#model") or recorded.models.get(node.id) or UNKNOWN_MODEL)
        for node in snapshot.nodes
    }
    asked = [*stages.values(), *judges, *teacher, *(each for each in (user, corrector) if each is not None)]
    gateway = evaluator.gateway
    return RunPlan(
        train=len(checked.train.cases),
        validation=len(checked.validation.cases),
        test=0 if checked.test is None else len(checked.test.cases),
        repeats=evaluator.options.repeats,
        final_test=_claim(request),
        wishful=tuple(
            written(part) for part in parts_of(request.acceptance) if isinstance(part, PairedGain | SigmaGain)
        ),
        max_rounds=request.max_rounds,
        limits=limits_of(request),
        caps=gateway.budget.caps if gateway.budget is not None else Caps(),
        concurrency=evaluator.options.concurrency,
        slots=max(gateway.concurrency, 1),
        search=outline,
        is_outlined=isinstance(search, OutlinedSearch),
        cases=recorded.cases or tuple(cases_by_thumb(snapshot, cases, values, rng=rng)),
        recorded=recorded,
        below=_below(snapshot, checked.targets),
        models=models,
        prices=_prices(
            gateway, {*models.values(), *recorded.models.values(), *(each.model for each in asked)}, recorded
        ),
        stages=stages,
        judges=judges,
        teacher=teacher,
        user=user,
        corrector=corrector,
        reserved_tokens=_reserved(snapshot, values, sizes, gateway),
    )


def limits_of(request: RunRequest) -> Limits:
    """What of a stop policy can be forecast: the parts that end a run each by itself."""
    if request.stop is None:
        return Limits(target=1.0, patience=3) if request.goal.kind == "score" else Limits()
    parts = request.stop.policies if isinstance(request.stop, StopOnAny) else (request.stop,)
    return Limits(
        target=next((_target(each, request) for each in parts if isinstance(each, TargetScore)), None),
        patience=min((each.rounds for each in parts if isinstance(each, Patience)), default=None),
        evaluations=min((each.evaluations for each in parts if isinstance(each, MaxEvaluations)), default=None),
        calls=min((each.calls for each in parts if isinstance(each, MaxCalls)), default=None),
        tokens=min((each.tokens for each in parts if isinstance(each, MaxTokens)), default=None),
        usd=min((each.usd for each in parts if isinstance(each, MaxUsd)), default=None),
        seconds=min((each.limit_s for each in parts if isinstance(each, Deadline)), default=None),
    )


def _claim(request: RunRequest) -> ClaimOutline | None:
    rule = request.final_test
    if rule is None:
        return None
    return ClaimOutline(
        repeats=rule.repeats, blocks=len(plan_blocks(request.alpha, repeats=rule.repeats)), ablates=rule.ablate
    )


def _target(policy: StopPolicy, request: RunRequest) -> float:
    score = policy.score if isinstance(policy, TargetScore) else 1.0
    return 1.0 - score if request.objective == "weighted_loss" else score


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """How long things are, in tokens, for what was never recorded; and how many turns a case has."""

    turns: float
    case: float
    surface: float
    recorded: Recorded

    @staticmethod
    def of(cases: tuple[EvalCase, ...], values: list[object], recorded: Recorded) -> _Sizes:
        surface = fmean(text_tokens(str(value)) for value in values) if values else 0.0
        turns = fmean(max(1, len(case.turns)) for case in cases)
        return _Sizes(turns=turns, case=fmean(map(case_tokens, cases)), surface=surface, recorded=recorded)

    def asked(self, role: Role, node_id: str, model: str, *, calls: float = 1.0) -> Asked:
        use = self.recorded.calls.get(role) or stage_call_by_thumb(
            role, surface_tokens=self.surface, case_tokens=self.case, is_simulated=model == "simulated"
        )
        return Asked(node_id=node_id, model=model, use=use, calls=calls)


def _stages(outline: SearchOutline, sizes: _Sizes) -> dict[StageRole, Asked]:
    named: tuple[tuple[StageRole, str | None], ...] = (
        ("backwarder", outline.backwarder),
        ("aggregator", outline.aggregator),
        ("optimizer", outline.optimizer),
    )
    return {role: sizes.asked(role, "", model) for role, model in named if model is not None}


def _judges(evaluator: Evaluator, sizes: _Sizes) -> tuple[Asked, ...]:
    return tuple(
        sizes.asked("judge", metric.name, judge.model, calls=len(judge.repeats) * sizes.turns)
        for metric in evaluator.metrics
        if isinstance(metric, JudgeMetric)
        for judge in metric.judges
    )


def _teacher(request: RunRequest, checked: CheckedRequest, sizes: _Sizes) -> tuple[Asked, ...]:
    """One call for each answer that is missing; of a teacher that is an agent, one of each of its nodes."""
    if request.teacher is None:
        return ()
    missing = sum(
        turn.expected is None
        for case in (*checked.train.cases, *checked.validation.cases)
        if case.scenario is None
        for turn in case.turns
    )
    if isinstance(request.teacher, str):
        return (sizes.asked("teacher", "teacher", request.teacher, calls=missing),)
    snapshot = request.teacher.describe()
    models = {each.node_id: str(each.value) for each in snapshot.surfaces if each.type == "model"}
    return tuple(
        sizes.asked("teacher", node.id, models.get(node.id, UNKNOWN_MODEL), calls=missing)
        for node in asking_nodes(snapshot)
    )


def _user(evaluator: Evaluator, cases: tuple[EvalCase, ...], sizes: _Sizes) -> Asked | None:
    simulator, scenarios = evaluator.user_simulator, sum(case.scenario is not None for case in cases)
    if simulator is None or not scenarios:
        return None
    return sizes.asked("user", "user", simulator.model, calls=simulator.max_turns / 2 * scenarios / len(cases))


def _below(snapshot: StructureSnapshot, targets: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """For each node with a target: itself and what follows. What is inside an agent follows and precedes with it."""
    import networkx as nx

    graph = snapshot.digraph()
    for node in snapshot.nodes:
        parent = node.id.rpartition("/")[0]
        if parent in graph:
            graph.add_edges_from([(parent, node.id), *((node.id, after) for after in list(graph.successors(parent)))])
    nodes = sorted({snapshot.surface(target).node_id for target in targets})
    return {node_id: frozenset({node_id, *nx.descendants(graph, node_id)}) for node_id in nodes}


def _prices(gateway: Gateway, models: set[str], recorded: Recorded) -> dict[str, Price | None]:
    """What each model costs; where no list says it, what was recorded."""
    prices: dict[str, Price | None] = {}
    for model in sorted(models):
        price = None if model == UNKNOWN_MODEL else gateway.price(model)
        if price is None and (rate := recorded.usd_per_token.get(model)) is not None:
            price = Price(input_usd_per_million=rate * 1e6, output_usd_per_million=rate * 1e6)
        prices[model] = price
    return prices


def _reserved(snapshot: StructureSnapshot, values: Values, sizes: _Sizes, gateway: Gateway) -> float:
    """What one call has to fit into a budget with: the bytes of its request, and the longest answer."""
    longest = max((sum(len(str(values[s.id])) for s in snapshot.surfaces_of(n.id)) for n in snapshot.nodes), default=0)
    return longest + 4 * sizes.case + gateway.max_output_tokens
