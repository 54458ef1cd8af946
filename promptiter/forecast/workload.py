"""Workload: what a run consists of, as far as its cost is concerned. Read from an engine and a request.

How many cases there are, which nodes ask which models and which nodes follow a changed one is known before a run. How
the search goes is not: `estimate` makes assumptions about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from promptiter.engine.engine import Engine
from promptiter.engine.outline import UNKNOWN_MODEL, OutlinedSearch, SearchOutline
from promptiter.engine.request_checks import check_request
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.stats.final_test import plan_blocks
from promptiter.forecast.stage_costs import ModelStage
from promptiter.llm.models import estimate_tokens
from promptiter.profile import Profile
from promptiter.runlog.results import RunRequest
from promptiter.structure import StructureSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A model besides the agent's, and its calls: of a judge or a simulated user per case run, of a teacher in all.

    Stages of the search have no name; how often they call depends on how the search goes.
    """

    stage: ModelStage
    model: str
    name: str = ""
    calls: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One run before it starts.

    `models` are the models of the nodes that ask one. `downstream` has, for each node with a target, the nodes that are
    paid again when it changes. `final_test_repeats` are the repeats of each block of the final test, if there is one.
    """

    request: RunRequest
    snapshot: StructureSnapshot
    profile: Profile
    cases: tuple[EvalCase, ...]
    train: int
    validation: int
    test: int
    repeats: int
    concurrency: int
    final_test_repeats: tuple[int, ...]
    search: SearchOutline
    has_outline: bool
    models: Mapping[str, str]
    downstream: Mapping[str, frozenset[str]]
    asked: tuple[Asked, ...]

    @property
    def surface_tokens(self) -> dict[str, float]:
        """How long the values of all surfaces are."""
        values = {name: self.profile.value(name, self.snapshot) for name in self.snapshot.surface_ids}
        return {name: estimate_tokens(str(value)) for name, value in values.items()}

    def asked_in(self, *stages: ModelStage) -> list[Asked]:
        """The models that are asked in these stages."""
        return [each for each in self.asked if each.stage in stages]


def read_workload(engine: Engine, request: RunRequest) -> Workload:
    """The workload of a run; RequestError if the run could not be served."""
    snapshot, evaluator = engine.describe(), engine.evaluator_for(request)
    checked = check_request(request, snapshot, evaluator)
    cases = (*checked.train.cases, *checked.validation.cases)
    profile = request.initial_profile or Profile.baseline(snapshot)
    outline = engine.search.outline() if isinstance(engine.search, OutlinedSearch) else SearchOutline()
    blocks = () if request.final_test is None else plan_blocks(request.alpha, repeats=request.final_test.repeats)
    return Workload(
        request=request,
        snapshot=snapshot,
        profile=profile,
        cases=cases,
        train=len(checked.train.cases),
        validation=len(checked.validation.cases),
        test=0 if checked.test is None else len(checked.test.cases),
        repeats=evaluator.options.repeats,
        concurrency=evaluator.options.concurrency,
        final_test_repeats=tuple(block.repeats for block in blocks),
        search=outline,
        has_outline=isinstance(engine.search, OutlinedSearch),
        models=_models(snapshot, profile),
        downstream=find_downstream(snapshot, checked.targets),
        asked=(
            *_stages(outline),
            *_judges(evaluator, cases),
            *_users(evaluator, cases),
            *_teachers(request, cases),
        ),
    )


def find_downstream(snapshot: StructureSnapshot, targets: Iterable[str]) -> dict[str, frozenset[str]]:
    """For each node with a target: the node and all that follow it. Nodes inside an agent follow what precedes it."""
    import networkx as nx

    graph = snapshot.digraph()
    for node in snapshot.nodes:
        parent = node.id.rpartition("/")[0]
        if parent in graph:
            graph.add_edges_from([(parent, node.id), *((node.id, after) for after in list(graph.successors(parent)))])
    nodes = sorted({snapshot.surface(target).node_id for target in targets})
    return {node_id: frozenset({node_id, *nx.descendants(graph, node_id)}) for node_id in nodes}


def _models(snapshot: StructureSnapshot, profile: Profile) -> dict[str, str]:
    """The nodes that seem to ask models: those of kind `llm`, and those with an instruction and no nodes inside."""
    values = {each.node_id: profile.value(each.id, snapshot) for each in snapshot.surfaces if each.type == "model"}
    parents = {node.id.rpartition("/")[0] for node in snapshot.nodes}
    return {
        node.id: str(values.get(node.id) or UNKNOWN_MODEL)
        for node in snapshot.nodes
        if node.kind == "llm"
        or (node.id not in parents and any(each.type == "instruction" for each in snapshot.surfaces_of(node.id)))
    }


def _stages(outline: SearchOutline) -> Iterator[Asked]:
    models: dict[ModelStage, str | None] = {
        "backwarder": outline.backwarder,
        "aggregator": outline.aggregator,
        "optimizer": outline.optimizer,
        "teacher": outline.corrector,
    }
    return (Asked(stage=stage, model=model) for stage, model in models.items() if model is not None)


def _judges(evaluator: Evaluator, cases: Sequence[EvalCase]) -> Iterator[Asked]:
    turns = fmean(max(1, len(case.turns)) for case in cases)
    for metric in evaluator.metrics:
        for judge in metric.judges if isinstance(metric, JudgeMetric) else ():
            yield Asked(stage="judge", name=metric.name, model=judge.model, calls=len(judge.repeats) * turns)


def _users(evaluator: Evaluator, cases: Sequence[EvalCase]) -> Iterator[Asked]:
    simulator, share = evaluator.user_simulator, fmean(case.scenario is not None for case in cases)
    if simulator is not None and share:
        yield Asked(stage="user", name="user", model=simulator.model, calls=share * simulator.max_turns / 2)


def _teachers(request: RunRequest, cases: Sequence[EvalCase]) -> Iterator[Asked]:
    """One call for each missing answer; if the teacher is an agent, one by each of its nodes."""
    missing = sum(turn.expected is None for case in cases if case.scenario is None for turn in case.turns)
    if isinstance(request.teacher, str):
        yield Asked(stage="teacher", name="teacher", model=request.teacher, calls=missing)
    elif request.teacher is not None:
        snapshot = request.teacher.describe()
        for node_id, model in _models(snapshot, Profile.baseline(snapshot)).items():
            yield Asked(stage="teacher", name=node_id, model=model, calls=missing)
