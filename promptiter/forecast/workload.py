"""Workload: what a run consists of, as far as its cost is concerned, read from an engine and a request.

How many cases there are, which nodes ask which models and which nodes follow a changed one is known before a run. How
the search goes is not: `estimate` makes assumptions about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from promptiter.agents.base import is_agent
from promptiter.agents.runner import Runner
from promptiter.engine.engine import Engine
from promptiter.engine.outline import UNKNOWN_MODEL, OutlinedSearch, SearchOutline, find_kept_targets
from promptiter.engine.price_checks import list_model_choices
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.metrics.metric import Metric
from promptiter.profile import Profile
from promptiter.runlog.results import RunShape
from promptiter.runs.stage_costs import ModelStage
from promptiter.structure import StructureSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """A model besides the agent's, and its calls: of a judge or a user simulator per case run, of a teacher in all.

    Stages of the search have no name; how often they call depends on how the search goes.
    """

    stage: ModelStage
    model: str
    name: str = ""
    calls: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One run before it starts.

    `models` are the models of the nodes that ask one, and `choices` the others that the search may choose for them.
    `targets` is how many surfaces it can change. `downstream` has, for each node with a target, the nodes that are
    paid again when it changes. `outline` is None if the search has none. `reserved_metric_calls` are those that
    `max_metric_calls` of the request reserves for the final test.
    """

    request: RunRequest
    snapshot: StructureSnapshot
    profile: Profile
    shape: RunShape = "two_sets"
    cases: tuple[EvalCase, ...]
    train: int
    validation: int
    test: int
    repeats: int
    concurrency: int
    outline: SearchOutline | None
    models: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]
    downstream: Mapping[str, frozenset[str]]
    stage_models: tuple[StageModel, ...]
    targets: int
    reserved_metric_calls: int

    @property
    def taught_cases(self) -> int:
        """The most train cases that a teacher of few-shot examples runs."""
        return self.train if self.outline is not None and self.outline.teacher is not None else 0

    def models_of(self, *stages: ModelStage) -> list[StageModel]:
        """The models that these stages ask."""
        return [each for each in self.stage_models if each.stage in stages]


def read_workload(engine: Engine, request: RunRequest | CheckedRequest) -> Workload:
    """The workload of a run; RequestError if the run could not be served."""
    checked = engine.check(request)
    request, snapshot, evaluator = checked.request, checked.snapshot, checked.evaluator
    learned = checked.train.cases if checked.shape == "two_sets" else ()
    cases = (*learned, *checked.validation.cases)
    profile = request.initial_profile or Profile.baseline(snapshot)
    kept = find_kept_targets(engine.search, snapshot, checked.targets, shape=checked.shape)
    targets = [target for target in checked.targets if target not in kept]
    outline = engine.search.outline() if isinstance(engine.search, OutlinedSearch) else None
    return Workload(
        request=request,
        snapshot=snapshot,
        profile=profile,
        shape=checked.shape,
        cases=cases,
        train=len(checked.train.cases),
        validation=len(checked.validation.cases),
        test=0 if checked.test is None else len(checked.test.cases),
        repeats=evaluator.options.repeats,
        concurrency=evaluator.options.concurrency,
        outline=outline,
        models={} if checked.shape == "scorer" else _find_models(snapshot, profile),
        choices={} if checked.shape == "scorer" else list_model_choices(request, snapshot, targets),
        downstream=find_downstream(snapshot, checked.targets),
        stage_models=(
            *_search_models(outline),
            *_case_models(evaluator, cases),
            *_teacher_models(request, cases),
            *_list_taught(outline, snapshot, profile, train=len(checked.train.cases)),
        ),
        targets=len(targets),
        reserved_metric_calls=checked.count_metric_calls().reserved,
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


def _find_models(snapshot: StructureSnapshot, profile: Profile) -> dict[str, str]:
    """The nodes that seem to ask models: those of kind `llm`, and those with an instruction and no nodes inside."""
    values = {each.node_id: profile.value(each.id, snapshot) for each in snapshot.surfaces if each.type == "model"}
    parents = {node.id.rpartition("/")[0] for node in snapshot.nodes}
    instructed = {each.node_id for each in snapshot.surfaces if each.type == "instruction"} - parents
    nodes = [node.id for node in snapshot.nodes if node.kind == "llm" or node.id in instructed]
    return {node_id: str(values.get(node_id) or UNKNOWN_MODEL) for node_id in nodes}


def _search_models(outline: SearchOutline | None) -> Iterator[StageModel]:
    outline = outline or SearchOutline()
    models: dict[ModelStage, str | None] = {
        "backwarder": outline.backwarder,
        "aggregator": outline.aggregator,
        "optimizer": outline.optimizer,
        "corrector": outline.corrector,
        "critic": outline.critic,
        "applier": outline.applier,
    }
    return (StageModel(stage=stage, model=model) for stage, model in models.items() if model is not None)


def list_judge_models(metrics: Iterable[Metric], cases: Sequence[EvalCase]) -> Iterator[StageModel]:
    """The models of judges, each with its calls per case run."""
    turns = fmean(max(1, len(case.turns)) for case in cases)
    for metric in metrics:
        for judge in metric.judges if isinstance(metric, JudgeMetric) else ():
            asked = judge.model if judge.runner is None else judge.runner
            for name, model in _models_of(asked, name=metric.name).items():
                yield StageModel(stage="judge", name=name, model=model, calls=len(judge.repeats) * turns)


def _case_models(evaluator: Evaluator, cases: Sequence[EvalCase]) -> Iterator[StageModel]:
    """Judges and the user simulator: they are asked in every case run."""
    yield from list_judge_models(evaluator.metrics, cases)
    simulator, share = evaluator.user_simulator, fmean(case.scenario is not None for case in cases)
    if simulator is not None and share:
        yield StageModel(stage="user", name="user", model=simulator.model, calls=share * simulator.max_turns / 2)


def _teacher_models(request: RunRequest, cases: Sequence[EvalCase]) -> Iterator[StageModel]:
    """One call for each missing answer; if the teacher is an agent, one by each of its nodes."""
    missing = sum(turn.expected is None for case in cases if case.scenario is None for turn in case.turns)
    models = {} if request.teacher is None else _models_of(request.teacher, name="teacher")
    return (StageModel(stage="teacher", name=name, model=model, calls=missing) for name, model in models.items())


def _list_taught(
    outline: SearchOutline | None, snapshot: StructureSnapshot, profile: Profile, *, train: int
) -> Iterator[StageModel]:
    """The teacher of few-shot examples: one call of each node for each train case, if all of them fail."""
    if outline is not None and outline.teacher is not None:
        calls = train * len(_find_models(snapshot, profile))
        yield StageModel(stage="teacher", name="examples", model=outline.teacher, calls=calls)


def _models_of(asked: Runner | str, *, name: str) -> dict[str, str]:
    """The models behind a teacher or judge: itself, those of an agent's nodes, or none of a function."""
    if isinstance(asked, str):
        return {name: asked}
    if not is_agent(asked):
        return {}
    snapshot = asked.describe()
    return _find_models(snapshot, Profile.baseline(snapshot))
