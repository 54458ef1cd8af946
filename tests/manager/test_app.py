"""Apps prepare runs from what requests change about them, and build these runs again after a restart."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.errors import ChangedInputsError, RequestError
from promptiter.evaluation.data.evalset import build_eval_set
from promptiter.evaluation.evaluator import EvaluationOptions
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import ScriptedModel
from promptiter.llm.redaction import Redactor
from promptiter.manager import ConfiguredApp, EngineApp
from promptiter.manager.app import PreparedRun
from promptiter.policies.acceptance import MinGain
from promptiter.policies.stopping import Patience, TargetScore
from promptiter.runs.folder_store import FolderStore
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.store import Store
from promptiter.runs.stored_run import StoredRun, check_inputs, new_header
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_contract import make_killing_store
from promptiter.testing.store_hooks import Killed, expect_error
from tests.config.conftest import FILE, folder, write_cases, write_config
from tests.manager.test_manager import managing
from traces.model import Json

pytestmark = pytest.mark.slow

__all__ = ["folder"]

CASES = {"cases": [{"id": "x", "input": "Who?"}, {"id": "y", "input": "Where?"}]}


def make_app(small: SmallRun | None = None, engine: Engine | None = None) -> EngineApp:
    small = small or SmallRun()
    return EngineApp(
        engine or small.engine,
        "desk",
        request=small.request,
        eval_sets=[build_eval_set("more", [{"id": "z", "input": "When?"}])],
        judges={"strict": "gpt-4o"},
    )


def find_problems(app: EngineApp, **given: Json) -> list[str]:
    with pytest.raises(RequestError) as caught:
        app.prepare(given)
    return list(caught.value.problems)


async def run_until_killed(app: EngineApp, store: Store, changes: Json) -> str:
    """The id of a run whose process dies after its tenth event."""
    prepared = app.prepare(changes)
    dying = make_killing_store(store.for_app(app.name), 9, is_written=True)
    run = await StoredRun.begin(dying, prepared.engine, prepared.checked, app=app.name, overlay=prepared.overlay)
    with expect_error(Killed):
        await run.run()
    return run.run_id


def list_cases(run: PreparedRun, name: str) -> list[str]:
    return [case.id for case in getattr(run.checked, name).cases]


def test_without_changes_a_run_is_that_of_the_request() -> None:
    run, small = make_app().prepare(None), SmallRun()
    assert run.overlay == {}
    expected = small.engine.check(small.request)
    assert (run.checked.train, run.checked.validation) == (expected.train, expected.validation)
    assert replace(run.checked.request, train=None, validation=None) == replace(
        expected.request, train=None, validation=None
    )


def test_a_request_changes_what_it_gives() -> None:
    given = {
        "train": ["train", "more"],
        "validation": CASES,
        "targets": ["clerk#instruction"],
        "max_rounds": 7,
        "acceptance": {"min_gain": 0.1, "protected": ["x"]},
        "stop": {"patience": 5, "target_score": 0.9},
        "initial_profile": {"values": {"clerk#instruction": "Say it."}},
        "evaluation": {"repeats": 3},
        "budget": {"max_calls": 90, "max_metric_calls": 50},
        "seed": 4,
    }
    run = make_app().prepare(given)
    request = run.checked.request
    assert (list_cases(run, "train"), list_cases(run, "validation")) == (["train-0", "z"], ["x", "y"])
    assert (request.max_rounds, request.seed, request.max_metric_calls) == (7, 4, 50)
    assert request.protected == {"x"}
    assert str(request.acceptance).startswith(str(MinGain(0.1)))
    assert str(request.stop) == str(TargetScore(0.9) | Patience(5))
    assert request.initial_profile is not None
    assert request.initial_profile.overrides == {"clerk#instruction": "Say it."}
    assert (run.checked.evaluator.options.repeats, run.checked.evaluator.seed) == (3, 4)
    budget = run.checked.evaluator.gateway.budget
    assert budget is not None
    assert budget.caps.max_calls == 90
    assert run.engine.evaluator.gateway.budget is None, "other runs have no such cap"
    assert run.overlay == {**given, "validation": [CASES]}


def test_problems_are_reported_together_with_the_nearest_names() -> None:
    assert find_problems(make_app(), train="trian", judge="strikt", teacher="gpt-4o", metrics="all") == [
        "train: the app has no eval set 'trian' (did you mean 'train'?)",
        "judge: the app has no judge 'strikt' (did you mean 'strict'?)",
        "teacher: the app has no teacher 'gpt-4o'; none is registered",
        "metrics: the app has no metrics 'all'; none is registered",
    ]
    assert find_problems(make_app(), cases="more", train="train") == [
        "cases: are used as train and validation set; give either cases or the two sets"
    ]
    [problem] = find_problems(make_app(), targets=["clark#instruction"])
    assert "did you mean 'clerk#instruction'" in problem
    [problem] = find_problems(make_app(), initial_profile={"values": {"clark#instruction": "x"}})
    assert problem.startswith("initial_profile: ")
    assert find_problems(make_app(), agent="os:system")
    assert find_problems(make_app(), train="/etc/passwd") == [
        "train: the app has no eval set '/etc/passwd'; it has train, validation, more"
    ]


def test_a_request_cannot_exceed_the_caps_of_the_engine() -> None:
    small = SmallRun()
    gateway = Gateway(models={"scripted": ScriptedModel(small._answer)}, budget=Budget(max_calls=50, max_tokens=10**6))
    evaluator = small.engine.evaluator.with_gateway(gateway).with_options(EvaluationOptions(concurrency=2))
    engine = Engine(small.engine.agent, evaluator, search=small.engine.search)
    assert find_problems(make_app(small, engine), budget={"max_calls": 51}, evaluation={"concurrency": 3}) == [
        "evaluation.concurrency: is 3, and the app allows at most 2",
        "budget.max_calls: is 51, and the app allows at most 50",
    ]
    run = make_app(small, engine).prepare({"budget": {"max_calls": 20}})
    budget = run.checked.evaluator.gateway.budget
    assert budget is not None
    assert (budget.caps.max_calls, budget.caps.max_tokens) == (20, 10**6)


def test_an_engine_without_a_request_takes_cases_inline() -> None:
    run = EngineApp(SmallRun().engine).prepare({"cases": CASES, "max_rounds": 1})
    assert (run.checked.shape, list_cases(run, "train")) == ("one_set", ["x", "y"])


async def test_a_run_with_changes_is_built_again_after_its_process_died() -> None:
    store, small, killed = MemoryStore(), SmallRun(), SmallRun()
    changes = {"validation": CASES, "budget": {"max_calls": 1000}}
    async with managing(EngineApp(small.engine, "desk", request=small.request)) as manager:
        expected = await manager.wait((await manager.start(changes)).run_id)
    run_id = await run_until_killed(make_app(killed), store, changes)
    again = SmallRun()
    async with managing(make_app(again), store) as manager:
        assert await manager.wait(run_id) == expected
        assert (await manager.get(run_id)).status == "succeeded"
    assert killed.asked + again.asked == small.asked, "no logged answer is asked for again"


async def test_a_run_whose_eval_set_is_gone_is_not_resumed() -> None:
    store, killed = MemoryStore(), SmallRun()
    run_id = await run_until_killed(make_app(killed), store, {"train": "more"})
    again = SmallRun()
    async with managing(EngineApp(again.engine, "desk", request=again.request), store) as manager:
        result = await manager.wait(run_id)
        assert "the app has no eval set 'more'" in str(result.error)
    assert again.asked == 0


def test_secrets_of_an_app_are_not_stored_with_a_request(folder: Path) -> None:
    key = "sk-live-3f9a77c1b2"
    small = SmallRun()
    gateway = Gateway(models={"scripted": ScriptedModel(small._answer)}, redactor=Redactor([key]))
    engine = Engine(small.engine.agent, small.engine.evaluator.with_gateway(gateway), search=small.engine.search)
    for given in (
        {"train": {"cases": [{"id": "x", "input": f"The key is {key}."}]}},
        {"initial_profile": {"values": {"clerk#instruction": key}}},
    ):
        [problem] = find_problems(make_app(small, engine), **given)
        assert "a secret of the app" in problem
        assert key not in problem
    configured = ConfiguredApp(write_config(folder, FILE), name="echo", environ={"OPENAI_API_KEY": key})
    with pytest.raises(RequestError, match="a secret of the app") as caught:
        configured.prepare({"train": {"cases": [{"id": "x", "input": key, "expected": "y"}]}})
    assert key not in str(caught.value)
    quoted = configured.prepare({"train": {"cases": [{"id": "x", "input": "${OPENAI_API_KEY}", "expected": "y"}]}})
    assert quoted.checked.train.cases[0].turns[0].user == "${OPENAI_API_KEY}", "variables are not expanded in requests"


PROGRAM = """
    import asyncio, os, sys
    from promptiter.manager import EngineApp, Manager
    from promptiter.runs import FolderStore
    from promptiter.testing.small_run import SmallRun

    async def main():
        small = SmallRun()
        async with Manager(EngineApp(small.engine, "desk", request=small.request), store=FolderStore(sys.argv[1])) as m:
            run = await m.start({"max_rounds": 1})
            async for event in m.watch(run.run_id):
                if event.type == "round_started":
                    os.kill(os.getpid(), 9)

    asyncio.run(main())
"""


@pytest.mark.long
async def test_a_manager_continues_a_run_with_changes_whose_process_was_killed(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", dedent(PROGRAM), str(tmp_path))
    assert await process.wait() == -signal.SIGKILL
    small = SmallRun()
    async with managing(EngineApp(small.engine, "desk", request=small.request), FolderStore(tmp_path)) as manager:
        [run] = (await manager.list()).runs
        result = await manager.wait(run.run_id)
    assert (result.status, len(result.rounds)) == ("succeeded", 1)


def test_a_python_request_is_as_before() -> None:
    small = SmallRun()
    run = make_app(small).prepare(small.request)
    assert run.overlay is None
    assert isinstance(run.checked.request, RunRequest)


async def test_an_edit_of_the_file_takes_effect_at_the_next_start(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_config(folder, FILE + "max_rounds: 4\nmodels: {simulated: {compliance: 0.8}}\n")
    app, store = ConfiguredApp(file, name="echo", environ={}), MemoryStore()

    async def resume(app: ConfiguredApp, run_id: str) -> PreparedRun:
        header = (await store.view(run_id)).header
        prepared = app.rebuild(header)
        check_inputs(header, prepared.engine, prepared.checked, configuration=prepared.configuration, where=run_id)
        return prepared

    first = app.prepare({"seed": 3})
    run = await StoredRun.begin(
        store, first.engine, first.checked, configuration=first.configuration, app="echo", overlay=first.overlay
    )
    write_config(folder, FILE + "max_rounds: 2\nmodels: {simulated: {compliance: 0.5}}\n")
    for prepared in (app.prepare({}), app.prepare({}), await resume(app, run.run_id)):
        assert prepared.checked.request.max_rounds == 4
        assert prepared.configuration is not None
        assert prepared.configuration.document["models"] == {"simulated": {"compliance": 0.8}}
    assert caplog.text.count("promptiter.yaml has changed since the server started; restart it") == 1
    assert "config_agent.py has changed" not in caplog.text
    (folder / "config_agent.py").write_text("changed = True\n")  # as `promptiter apply` does
    for _ in range(2):
        app.prepare({})
    assert caplog.text.count("config_agent.py has changed since the server started; restart it") == 1
    restarted = ConfiguredApp(file, name="echo", environ={})
    write_config(folder, FILE + "max_rounds: 4\nmodels: {simulated: {compliance: 0.8}}\n")
    with pytest.raises(ChangedInputsError, match="max_rounds was 4 and is now 2"):
        await resume(restarted, run.run_id)


def test_an_edit_of_an_eval_set_is_used_by_new_runs_and_refused_by_old_ones(folder: Path) -> None:
    app = ConfiguredApp(write_config(folder, FILE), name="echo", environ={})
    first = app.prepare({})
    header = new_header(first.engine, first.checked, configuration=first.configuration, app="echo", overlay={})
    write_cases(folder / "data" / "train.jsonl", "tea")
    prepared = app.rebuild(header)
    assert list_cases(prepared, "train") == ["tea"]
    with pytest.raises(ChangedInputsError, match="case 'milk' was removed"):
        check_inputs(header, prepared.engine, prepared.checked, configuration=prepared.configuration, where="x")
