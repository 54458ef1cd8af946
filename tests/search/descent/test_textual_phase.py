"""Textual phases with the stages of backpropagation, alone or with one half of critic and applier."""

from __future__ import annotations

from dataclasses import replace

from promptiter.agents.declarations import Tool
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.record import get_passes
from promptiter.backprop.trial_record import Trial, get_trials, list_phases
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.gateway import Gateway
from promptiter.offline import SimulatedModel
from promptiter.runlog.results import RunResult
from promptiter.search.descent.search import CoordinateDescent
from promptiter.stages.diagnosis import ApplyRequest, DiagnoseRequest, Diagnosis, TextEdit


def make_cases(name: str) -> EvalSet:
    turns = [Turn(user=f"Where is my parcel? (order_id: {name}-{n}7)", expected=f"{name}-{n}7") for n in range(4)]
    return EvalSet(id=name, cases=tuple(EvalCase(id=f"{name}-{n}", turns=(each,)) for n, each in enumerate(turns)))


def run(search: CoordinateDescent, *, tools: tuple[Tool, ...] = ()) -> RunResult:
    nodes = (ModelNode(name="clerk", instruction="Answer the customer.", model="simulated", tools=tools),)
    gateway = Gateway(models={"simulated": SimulatedModel(compliance=1.0)})
    evaluator = Evaluator(build_metrics([{"metric_name": "contains"}]), gateway=gateway)
    engine = Engine(GraphAgent(name="shop", nodes=nodes), evaluator, search=search)
    return engine.run_sync(RunRequest(train=make_cases("A"), validation=make_cases("B"), final_test=None))


def list_trials(result: RunResult) -> list[Trial]:
    return [trial for each in result.rounds for trial in get_trials(each)]


def test_without_a_model_blame_diagnoses_and_rules_are_written() -> None:
    result = run(CoordinateDescent())
    [trial] = list_trials(result)

    assert trial.outcome == "accepted"
    assert trial.textual is not None
    [diagnosis] = trial.textual.diagnoses.values()
    assert diagnosis.confidence > 0.4
    assert set(diagnosis.citations) == {"A-0", "A-1", "A-2", "A-3"}
    assert [each.lines_added for each in trial.textual.edits] == [1]
    assert get_passes(result.rounds[0])
    assert result.accepted_score == 1.0


class NamesTheOrder:
    def diagnose(self, request: DiagnoseRequest) -> Diagnosis:
        assert request.failing[0].turns[0].expected == "A-07"
        return Diagnosis(failing_pattern="the answer lacks the order_id", confidence=0.9, citations=("A-0",))


class AsksForTheOrder:
    def apply(self, request: ApplyRequest) -> TextEdit:
        assert request.diagnosis.citations
        return TextEdit(new_text=f"{request.surface.value} Always state the order_id.", rationale="names it")


def test_a_critic_can_work_with_the_optimizer_stage() -> None:
    trials = list_trials(run(CoordinateDescent(critic=NamesTheOrder())))

    assert trials
    assert all(each.outcome in ("accepted", "no_edit", "no_gain", "repeated") for each in trials)


def test_an_applier_can_follow_the_blame_of_the_stages() -> None:
    result = run(CoordinateDescent(applier=AsksForTheOrder()))
    trial = list_trials(result)[0]

    assert trial.textual is not None
    assert trial.textual.edits[0].rationale == "names it"
    assert result.accepted_profile.overrides["clerk#instruction"] == "Answer the customer. Always state the order_id."


class DoubtsTools(NamesTheOrder):
    def diagnose(self, request: DiagnoseRequest) -> Diagnosis:
        found = super().diagnose(request)
        return found if request.surface.type == "instruction" else replace(found, confidence=0.1)


def test_of_texts_that_change_together_only_those_with_a_confident_diagnosis_do() -> None:
    group = ["clerk#instruction", "clerk#tool.track"]
    track = Tool(name="track", description="Finds a parcel.", function=lambda: "here", is_optional=False)
    search = CoordinateDescent(critic=DoubtsTools(), applier=AsksForTheOrder(), co_optimize=[group])
    trial = list_trials(run(search, tools=(track,)))[0]

    assert trial.outcome == "accepted"
    assert (trial.surfaces, trial.changed) == (tuple(group), ("clerk#instruction",))
    assert trial.textual is not None
    assert sorted(trial.textual.diagnoses) == group


def test_a_phase_ends_when_the_optimizer_only_repeats_itself() -> None:
    class Stubborn:
        def apply(self, request: ApplyRequest) -> TextEdit:
            return TextEdit(new_text=f"{request.surface.value} Be nice.", rationale="is nice")

    result = run(CoordinateDescent(applier=Stubborn(), textual_patience=3))

    assert [each.outcome for each in list_trials(result)] == ["no_gain", "no_edit", "no_edit"]
    assert [each.ended for each in list_phases(result.rounds)] == ["patience"]
