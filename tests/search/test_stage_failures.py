from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.backprop.record import get_passes
from promptiter.engine.engine import Engine
from promptiter.engine.run import RunFailedError
from promptiter.errors import StageError
from promptiter.llm.gateway import Gateway
from promptiter.policies.stopping import TargetScore
from promptiter.profile import SurfacePatch
from promptiter.runs.summary import summarize
from promptiter.stages.contracts import (
    AggregateRequest,
    AggregateResult,
    AttributeRequest,
    BackwardRequest,
    BackwardResult,
    GradientPacket,
    SurfaceGradient,
)
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from tests.worlds import desk
from tests.worlds.desk_stages import Blames, Merges, Writes


def engine(backwarder: Any = None, aggregator: Any = None, optimizer: Any = None) -> Engine:
    return Engine(desk.agent(), desk.evaluator(), backwarder or Blames(), aggregator or Merges(), optimizer or Writes())


async def fail(built: Engine) -> str:
    with pytest.raises(RunFailedError) as caught:
        await built.run(desk.request())
    assert isinstance(caught.value.__cause__, StageError)
    assert caught.value.result.status == "failed"
    return str(caught.value.__cause__)


class Broken:
    """Every method raises."""

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        raise ValueError(f"no idea of {request.step.id}")

    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        raise ValueError(f"too much about {request.surface.id}")

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        raise ValueError(f"no words for {request.surface.id}")


async def test_each_stage_that_fails_on_everything_ends_the_run_as_failed() -> None:
    assert await fail(engine(Broken())) == "Broken failed and blamed no surface: ValueError: no idea of polish"
    assert await fail(engine(None, Broken())) == (
        "Broken failed and merged no gradients: ValueError: too much about draft#instruction"
    )
    assert await fail(engine(None, None, Broken())) == (
        "Broken failed and wrote no patch: draft#instruction: ValueError: no words for draft#instruction"
    )


class ReturnsNone:
    async def backward(self, request: BackwardRequest) -> None: ...
    async def aggregate(self, request: AggregateRequest) -> None: ...
    async def optimize(self, request: OptimizeRequest) -> None: ...


class ReturnsText:
    async def attribute(self, request: AttributeRequest) -> list[str]:
        return [f"the prompt of {request.case_loss.case_id}"]

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        return PatchResult(patch=f"{request.surface.value} Be careful.")  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_wrong_return_value_is_named_with_the_class_of_the_stage() -> None:
    assert "ReturnsNone.backward() returned None; return a value of type BackwardResult" in await fail(
        engine(ReturnsNone())
    )
    assert "ReturnsNone.aggregate() returned None; return a value of type AggregateResult" in await fail(
        engine(None, ReturnsNone())
    )
    assert "ReturnsNone.optimize() returned None; return a value of type PatchResult" in await fail(
        engine(None, None, ReturnsNone())
    )
    assert "returned a list with 'the prompt of train-0'; return a list of BackwardResult" in await fail(
        engine(ReturnsText())
    )
    assert "the patch of a PatchResult is 'Draft. Be careful.'; give a SurfacePatch, or None" in await fail(
        engine(None, None, ReturnsText())
    )


class AnswersAboutAnother:
    def aggregate(self, request: AggregateRequest) -> AggregateResult:
        return AggregateResult(surface_id=request.surface.id.replace("instruction", "skill"), text="be careful")

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        other = request.surface.id.replace("instruction", "skill")
        return PatchResult(patch=SurfacePatch(surface_id=other, value="Be careful.", reason="care"))


async def test_an_answer_about_another_surface_is_named_with_the_class_of_the_stage() -> None:
    other = "was asked about 'draft#instruction' and answered about 'draft#skill'; return the id of the surface"
    assert f"AnswersAboutAnother.aggregate() {other}" in await fail(engine(None, AnswersAboutAnother()))
    assert f"AnswersAboutAnother.optimize() {other}" in await fail(engine(None, None, AnswersAboutAnother()))


class LeavesIdsEmpty(Merges):
    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        return replace(await super().aggregate(request), surface_id="")

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        return PatchResult(patch=SurfacePatch(surface_id="", value=f"{request.surface.value} Be careful.", reason=""))


async def test_an_answer_without_a_surface_is_about_the_one_of_the_request() -> None:
    stages = LeavesIdsEmpty()
    result = await engine(None, stages, stages).run(desk.request(stop=TargetScore(1.0)))
    assert {change.surface_id for change in result.changes} == {"draft#instruction", "polish#instruction"}


class Returns:
    """An optimizer whose patches have this value, or on `polish` another."""

    def __init__(self, value: object, *, on_polish: object = None) -> None:
        self.value, self.on_polish = value, on_polish

    def optimize(self, request: OptimizeRequest) -> PatchResult:
        value = self.on_polish if self.on_polish and request.surface.node_id == "polish" else self.value
        return PatchResult(patch=SurfacePatch(surface_id=request.surface.id, value=value, reason="care"))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (7, "the surface cannot take this value: it must be text, got 7"),
        (None, "the surface cannot take this value: it must be text, got None"),
        (object(), "TypeError: the value of a patch is an object of class object; give text or plain JSON"),
        (float("nan"), "TypeError: the value of a patch is nan; give text or plain JSON"),
    ],
)
async def test_an_optimizer_that_writes_only_illegal_values_ends_the_run_as_failed(value: object, problem: str) -> None:
    found = await fail(engine(None, None, Returns(value)))
    assert found == f"Returns failed and wrote no patch: draft#instruction: {problem}"


async def test_an_illegal_value_for_one_surface_skips_that_surface() -> None:
    result = await engine(None, None, Returns(7, on_polish="Polish. Be careful.")).run(desk.request(max_rounds=1))
    assert result.status == "succeeded"
    refused = get_passes(result.rounds[0])[0].refused
    assert {(each.surface_id, each.reason) for each in refused} == {
        ("draft#instruction", "the surface cannot take this value: it must be text, got 7")
    }


async def test_a_run_whose_patches_are_all_refused_says_why_nothing_was_tried() -> None:
    result = await engine(None, None, Returns("", on_polish=" ")).run(desk.request())
    assert result.conclusion is not None
    assert result.conclusion.reasons[0] == (
        "no candidate was tried: every patch was refused: draft#instruction: the text is empty; write the complete "
        "new text; polish#instruction: the text is empty; write the complete new text"
    )


def test_a_gradient_with_an_unknown_word_is_refused_where_it_is_made() -> None:
    fields: Any = {"surface_id": "a#instruction", "case_id": "c", "step_id": "a", "text": "be brief"}
    with pytest.raises(ValueError, match="the severity of a gradient is 'high'; give one of P0, P1, P2, P3"):
        SurfaceGradient(**fields | {"severity": "high"})
    with pytest.raises(ValueError, match="the category of a gradient is 'style'; give one of response, format"):
        SurfaceGradient(**fields | {"category": "style"})
    with pytest.raises(ValueError, match="the confidence of a gradient is 90; give a number from 0 to 1"):
        SurfaceGradient(**fields, confidence=90)
    with pytest.raises(TypeError, match="the gradients of a BackwardResult hold 'be brief'; give a tuple of Surface"):
        BackwardResult(step_id="a", gradients=("be brief",))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the text of a gradient is None; give a str"):
        SurfaceGradient(**fields | {"text": None})
    with pytest.raises(TypeError, match="the gradients of a BackwardResult are None; give a tuple of SurfaceGradient"):
        BackwardResult(step_id="a", gradients=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the severity of a packet is 'high'; give one of P0"):
        GradientPacket(source="b", target="a", text="be brief", severity="high")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the severity of a signal is 'high'; give one of P0"):
        AggregateResult(surface_id="a#instruction", text="be brief", severity="high")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the support of a signal is -3; give a number of cases, or 0 to count them"):
        AggregateResult(surface_id="a#instruction", text="be brief", support=-3)
    with pytest.raises(TypeError, match="the text of a signal is None; give a str"):
        AggregateResult(surface_id="a#instruction", text=None)  # type: ignore[arg-type]


class InThreads:
    """Synchronous stages, which note the threads they are called in."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def backward(self, request: BackwardRequest) -> BackwardResult:
        self.threads.add(threading.current_thread().name)
        blamed = [
            SurfaceGradient(surface_id=each, case_id=request.case_id, step_id=request.step.id, text="be careful")
            for each in request.blamable
        ]
        return BackwardResult(step_id=request.step.id, gradients=tuple(blamed))

    def aggregate(self, request: AggregateRequest) -> AggregateResult:
        self.threads.add(threading.current_thread().name)
        cases = tuple(sorted({each.case_id for each in request.gradients}))
        return AggregateResult(surface_id=request.surface.id, text="be careful", case_ids=cases, support=len(cases))

    def optimize(self, request: OptimizeRequest) -> PatchResult:
        self.threads.add(threading.current_thread().name)
        value = f"{request.surface.value} Be careful, careful."
        return PatchResult(patch=SurfacePatch(surface_id=request.surface.id, value=value, reason="care"))


async def test_synchronous_stages_are_called_in_threads() -> None:
    stages = InThreads()
    result = await engine(stages, stages, stages).run(desk.request(stop=TargetScore(1.0)))
    assert result.status == "succeeded"
    assert "polish#instruction" in {change.surface_id for change in result.changes}
    assert stages.threads
    assert threading.current_thread().name not in stages.threads


class NamesTheWrongSurface:
    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        step = request.trace.steps[-1].id
        gradient = SurfaceGradient(surface_id="plan#instruction", case_id="", step_id=step, text="be careful")
        return [BackwardResult(step_id=step, gradients=(gradient,))]


async def test_answers_that_are_thrown_away_are_counted_and_reported() -> None:
    result = await engine(NamesTheWrongSurface()).run(desk.request())
    assert result.verdict == "no_evidence"
    assert [each.dropped for each in get_passes(result.rounds[0])] == [3]
    summary = summarize(result)
    thrown_away = (
        "3 answers of the blaming stage were thrown away: the named surface was not read at that step, or the surface, "
        "step or case does not exist"
    )
    assert summary.problems == (thrown_away,)
    assert result.conclusion is not None
    assert result.conclusion.reasons[0] == f"no candidate was tried: {thrown_away}"
    assert summary.no_blame == "no surface could be blamed for the failures"


@pytest.mark.parametrize("stage", [LLMAttributor, LLMBackwarder])
async def test_the_diagnosis_of_a_model_that_blames_nothing_is_reported(stage: Callable[[str], Any]) -> None:
    said = '{"diagnosis": "The policy on tolerance is known to no step.", "gradients": [], "packets": []}'
    gateway = Gateway(models={"scripted": desk.model(), "judge": lambda _: said})
    result = await Engine(desk.agent(), desk.evaluator(gateway), stage("judge"), Merges(), Writes()).run(desk.request())
    why = "no surface could be blamed for the failures: The policy on tolerance is known to no step."
    assert summarize(result).no_blame == why
    assert result.conclusion is not None
    assert result.conclusion.reasons[0] == f"no candidate was tried: {why}"


async def test_an_optimizer_model_that_answers_nonsense_ends_the_run_as_failed() -> None:
    gateway = Gateway(models={"scripted": desk.model(), "nonsense": lambda _: "I would rather write a poem."})
    stages = Blames(), Merges(), LLMOptimizer("nonsense")
    built = Engine(desk.agent(), desk.evaluator(gateway), *stages)
    problem = await fail(built)
    assert problem.startswith("LLMOptimizer failed and wrote no patch: draft#instruction: BadAnswerError: ")


async def test_a_whole_trace_answer_about_a_surface_that_the_step_did_not_read_is_counted() -> None:
    blame = {"gradients": [{"surface": "draft#instruction", "step": "polish", "text": "be careful"}]}
    gateway = Gateway(models={"scripted": desk.model(), "expert": lambda _: orjson.dumps(blame).decode()})
    stages = LLMAttributor("expert"), Merges(), Writes()
    result = await Engine(desk.agent(), desk.evaluator(gateway), *stages).run(desk.request())
    assert [each.dropped for each in get_passes(result.rounds[0])] == [1]  # three traces, one prompt
    assert summarize(result).problems[0].startswith("1 answer of the blaming stage was thrown away: the named surface")


class Exits:
    def backward(self, request: BackwardRequest) -> BackwardResult:
        raise SystemExit(f"no idea of {request.step.id}")


async def test_a_stage_that_exits_does_not_end_the_program() -> None:
    assert "Exits.backward() called sys.exit('no idea of polish')" in await fail(engine(Exits()))


class CountsNothing:
    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        return AggregateResult(surface_id=request.surface.id, text="be careful")


async def test_a_signal_without_support_has_that_of_its_gradients() -> None:
    result = await engine(None, CountsNothing()).run(desk.request(stop=TargetScore(1.0)))
    [only] = result.rounds
    assert [signal.support for signal in get_passes(only)[0].signals] == [3.0, 3.0]
    assert result.verdict == "improved_on_validation"
