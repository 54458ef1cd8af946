"""A run is stopped by the user at its events and resumed: it stops after the work in progress, with the same result.

The run has events of every type, and its last round and its final test are part of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.request import RunRequest
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.policies.stopping import TargetScore
from promptiter.runlog.events import Event
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from tests.runs.test_kills import journal, names
from tests.worlds.bars import take_cases
from tests.worlds.expert import Expert
from tests.worlds.results import read_unmeasured
from tests.worlds.scenarios import make_scenario
from tests.worlds.starter import CountingModel, SmallShop

CHUNKS = 8
CONCURRENCY = 2


class Presses:
    """Asks to stop at an event."""

    def __init__(self, seq: int, interrupt: Interrupt, model: CountingModel) -> None:
        self.seq = seq
        self.interrupt = interrupt
        self.model = model
        self.asked: int | None = None

    async def observe(self, event: Event) -> None:
        if event.seq == self.seq:
            self.asked = self.model.asked
            self.interrupt.stop("a button")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not stopped."""
    folder = tmp_path_factory.mktemp("whole")
    SmallShop(concurrency=CONCURRENCY).run(folder)
    return folder


def stop_at(folder: Path, seq: int) -> RunResult:
    """Stop a run at an event, and check that only the case runs in progress were finished."""
    shop, interrupt = SmallShop(concurrency=CONCURRENCY), Interrupt()
    presses = Presses(seq, interrupt, shop.model)
    result = shop.directory(folder).run_sync(observers=[presses], interrupt=interrupt)
    calls_per_case_run = 4
    assert presses.asked is not None
    assert shop.model.asked - presses.asked <= CONCURRENCY * calls_per_case_run
    return result


def check_stop_and_resume(folder: Path, seq: int, whole: Path) -> None:
    stopped = stop_at(folder, seq)
    last = next(event for event in journal(whole).read() if event.type == "conclusion").seq
    if not stopped.is_final:
        assert stopped.stop is not None
        assert (stopped.status, stopped.stop.is_user_stop, stopped.conclusion) == ("succeeded", True, None)
    else:
        assert seq >= last - 4 - CONCURRENCY, "nothing was left to run"
    resumed = SmallShop(concurrency=CONCURRENCY).run(folder)
    assert resumed.is_final
    assert read_unmeasured(folder) == read_unmeasured(whole)
    assert names(folder) == names(whole)
    assert resumed.measured.spent.total.lost_calls == 0


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["baseline", "train", "validation", "ablation", "final_test"])
def test_a_run_stops_in_every_phase_and_resumes_with_the_same_result(phase: str, whole: Path, tmp_path: Path) -> None:
    first = next(event for event in journal(whole).read() if event.phase == phase and event.type == "case")
    check_stop_and_resume(tmp_path, first.seq, whole)


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_run_stops_at_every_event_and_resumes_with_the_same_result(chunk: int, whole: Path, tmp_path: Path) -> None:
    events = list(journal(whole).read())
    for seq in range(chunk, len(events), CHUNKS):
        check_stop_and_resume(tmp_path / str(seq), seq, whole)


@pytest.mark.long
def test_a_run_that_is_stopped_again_and_again_gives_the_same_result(whole: Path, tmp_path: Path) -> None:
    for seq in range(2, len(list(journal(whole).read())), 7):
        result = stop_at(tmp_path, seq + 2 * seq // 7) if not list(tmp_path.iterdir()) else stop_next(tmp_path)
        if result.is_final:
            break
    assert SmallShop(concurrency=CONCURRENCY).run(tmp_path).is_final
    assert read_unmeasured(tmp_path) == read_unmeasured(whole)


def stop_next(folder: Path) -> RunResult:
    """Resume a run, and stop it at the fourth event that it adds."""
    return stop_at(folder, len(list(journal(folder).read())) + 3)


@pytest.mark.slow
async def test_a_stop_lets_the_stage_calls_in_flight_finish_and_starts_no_other(tmp_path: Path) -> None:
    made = take_cases(make_scenario("two_masked", 0), 4, 3)
    expert, interrupt = Expert(made), Interrupt()
    asked: list[str] = []

    async def stages(request: ModelRequest, *, repeat: int) -> ModelReply:
        asked.append(request.digest)
        if len(asked) == 3:
            interrupt.stop("a button")
        return await expert.model(request, repeat=repeat)

    def directory() -> RunDirectory:
        gateway = Gateway(models={"simulated": made.model, "expert": stages}, concurrency=3)
        evaluator = Evaluator(made.metrics, gateway=gateway, options=EvaluationOptions(concurrency=4))
        engine = Engine(made.agent, evaluator, LLMBackwarder("expert"), LLMAggregator("expert"), LLMOptimizer("expert"))
        request = RunRequest(train=made.train, validation=made.validation, stop=TargetScore(1.0), run_id="stops")
        folder = tmp_path / "stops"
        if folder.exists():
            return RunDirectory.resume(folder, engine, request)
        return RunDirectory.begin(tmp_path, engine, request)

    stopped = await directory().run(interrupt=interrupt)
    assert (stopped.stop_reason, stopped.is_final) == ("user_stop", False)
    assert 3 <= len(asked) <= 3 + 2, "two other calls may have been in flight"
    assert stopped.measured.spent.total.lost_calls == 0
    resumed = await directory().run()
    assert resumed.accepted_score == 1.0
    assert len(asked) > 10
    assert len(set(asked)) == len(asked), "no stage call is made twice"
