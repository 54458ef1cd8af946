from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.agents import Edge, FunctionNode, GraphAgent, ModelNode
from promptiter.api import load_rerun, resume_run
from promptiter.engine.engine import Engine
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.request import RunRequest
from promptiter.errors import ChangedInputsError, SetupError
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.process_executor import ProcessExecutor
from promptiter.evaluation.scorer import Scorer
from promptiter.llm.gateway import Gateway
from promptiter.llm.secret import Secret
from promptiter.policies import AnyGain, Deadline, MinGain, NoRegression, Patience, TargetScore
from promptiter.profile import Profile
from promptiter.runs.directory import RunDirectory
from promptiter.runs.header import read_header
from promptiter.runs.listing import list_runs
from promptiter.runs.python_parts import describe_parts, rebuild_run
from promptiter.runs.summary import read_summary
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.rounds import BackpropRounds
from promptiter.stages import CheapestAttributor, LLMAttributor, LLMBackwarder, LLMCorrector, LLMOptimizer
from promptiter.stages.losses import LossHint
from tests.runs import named_parts
from tests.worlds.results import read_unmeasured

HERE = named_parts.__name__


def make_engine(search: Any = None, *, metrics: Any = None, **evaluation: Any) -> Engine:
    own = FunctionMetric(name="short", function=named_parts.is_short)
    found = metrics or [*build_metrics([{"metric_name": "exact_match"}]), own]
    return Engine(named_parts.agent, Evaluator(found, **{"gateway": named_parts.gateway, **evaluation}), search=search)


def make_request(**changes: Any) -> RunRequest:
    sets = {"train": named_parts.cases("train", "tea"), "validation": named_parts.cases("validation", "salt", "honey")}
    return RunRequest(**{**sets, "max_rounds": 1, "final_test": None, **changes})


def find_problem(engine: Engine, request: RunRequest | None = None) -> str:
    return "; ".join(describe_parts(engine, request or make_request()).problems)


def test_a_run_is_built_again_from_names_and_arguments() -> None:
    walk, whole = LLMBackwarder("simulated"), LLMAttributor("simulated", max_prompt_tokens=50_000)
    search = BackpropRounds(
        CheapestAttributor(whole, walk, concurrency=3),
        optimizer=LLMOptimizer("simulated", model_options={"temperature": 0.5}),
        passes=2,
        check=GradientCheck(LLMCorrector("simulated"), most=4),
    )
    request = make_request(
        acceptance=AnyGain() & NoRegression(),
        stop=(TargetScore(1.0) & Patience(2)) | Deadline(minutes=3),
        initial_profile=Profile.baseline(named_parts.agent.describe()),
        protected=frozenset(["salt", "honey"]),
        hints=(LossHint(case_id="tea", metric="exact_match", text="look at the end"),),
        evaluation=EvaluationOptions(repeats=2),
        teacher=named_parts.agent,
        seed=4,
    )
    engine = make_engine(search, executor=ProcessExecutor(workers=2), weights={"exact_match": 2.0})
    parts = describe_parts(engine, request, observers=[named_parts.Watcher("a ")], keep_traces="failed")
    assert parts.problems == ()
    rebuilt = rebuild_run(type(parts).model_validate_json(parts.model_dump_json()))
    assert rebuilt.request == request
    assert repr(rebuilt.request.stop) == repr(request.stop)
    assert rebuilt.engine.agent is named_parts.agent
    assert rebuilt.engine.evaluator.gateway is named_parts.gateway
    assert rebuilt.engine.evaluator.metrics == engine.evaluator.metrics
    assert rebuilt.engine.evaluator.weights == {"exact_match": 2.0}
    again = rebuilt.engine.search
    assert isinstance(again, BackpropRounds)
    assert isinstance(again.attributor, CheapestAttributor)
    assert (again.passes, again.attributor.concurrency, again.attributor.whole.max_prompt_tokens) == (2, 3, 50_000)
    assert again.outline() == search.outline()
    assert isinstance(again.optimizer, LLMOptimizer)
    assert again.optimizer.model_options == {"temperature": 0.5}
    executor, [watcher] = rebuilt.engine.evaluator.executor, rebuilt.observers
    assert isinstance(executor, ProcessExecutor)
    assert isinstance(watcher, named_parts.Watcher)
    assert (executor.workers, watcher.prefix, rebuilt.keep_traces) == (2, "a ", "failed")


def test_a_search_of_ones_own_is_built_with_the_arguments_it_stored() -> None:
    rebuilt = rebuild_run(
        describe_parts(make_engine(named_parts.AddRule("Be brief.", "Be kind.", times=2)), make_request())
    )
    again = rebuilt.engine.search
    assert isinstance(again, named_parts.AddRule)
    assert vars(again) == {"rule": "Be brief.", "extra": ("Be kind.",), "_times": 2}


def test_a_run_without_cases_is_built_again() -> None:
    request = RunRequest(scorer=Scorer(named_parts.score_profile, {"quality": 0.7}))
    engine = Engine(named_parts.agent.describe(), Evaluator(), search=named_parts.AddRule("x"))
    rebuilt = rebuild_run(describe_parts(engine, request))
    assert rebuilt.request == request
    assert rebuilt.engine.describe() == named_parts.agent.describe()


def test_the_part_without_a_name_is_named_with_advice() -> None:
    class Local(named_parts.AddRule):
        pass

    assert find_problem(make_engine(Local("x"))) == (
        "search (Local) has no name; assign it to a name at the top level of a module, or define its class there"
    )
    assert find_problem(make_engine(named_parts.Forgetful("x"))) == (
        "search (Forgetful) has no name; assign it to a name at the top level of a module, or let its "
        "class store its arguments under their names (`self.rule = rule`)"
    )
    metric = FunctionMetric(name="always", function=named_parts.make_function())
    assert find_problem(make_engine(metrics=[metric])) == (
        "metrics['always'].function (make_function.<locals>.always) has no name; define it at the top level of a module"
    )
    assert find_problem(make_engine(gateway=Gateway())) == (
        "evaluator.gateway (Gateway) has no name; assign it to a name at the top level of a module"
    )
    assert find_problem(make_engine(gateway=None)) == ""

    class OwnPolicy:
        def decide(self, evidence: object) -> Any: ...

    found = find_problem(make_engine(), make_request(acceptance=MinGain(0.1) & OwnPolicy()))
    assert found.startswith("argument 2 of request.acceptance (OwnPolicy) has no name")


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        (named_parts.Doubled("x", times=2), "would differ in times if built again from the arguments that it stored"),
        (named_parts.Tripled(2), "would differ in times if built again from the arguments that it stored"),
        (named_parts.Halved(8), "would differ in times if built again from the arguments that it stored"),
        (named_parts.Renamed("x"), "would differ in given if built again from the arguments that it stored"),
        (
            named_parts.Picky("x"),
            "cannot be built again from the arguments that it stored: ValueError: do not shout",
        ),
    ],
)
def test_a_part_that_its_stored_arguments_would_change_needs_a_name(search: Any, problem: str) -> None:
    assert find_problem(make_engine(search)) == (
        f"search ({type(search).__name__}) {problem}; let its class store them unchanged, or assign it to a name at "
        "the top level of a module"
    )


def test_a_part_with_tools_of_its_own_is_built_again() -> None:
    search = named_parts.Equipped(" Be brief. ")
    again = rebuild_run(describe_parts(make_engine(search), make_request())).engine.search
    assert isinstance(again, named_parts.Equipped)
    assert again.rule == "Be brief."


def test_a_class_that_changed_is_reported_when_the_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.begin(tmp_path, make_engine(named_parts.Equipped("x")), make_request())

    def rename(self: Any, text: str) -> None: ...

    def fail(self: Any, rule: str) -> None:
        raise RuntimeError("no database")

    for changed, problem in (
        (rename, "TypeError: .* unexpected keyword argument 'rule'"),
        (fail, "RuntimeError: no d"),
    ):
        monkeypatch.setattr(named_parts.Equipped, "__init__", changed)
        with pytest.raises(SetupError, match=f"Equipped' no longer takes the arguments that .* began: {problem}"):
            resume_run(run.path)


def test_all_parts_without_a_name_are_listed_before_the_run_starts(tmp_path: Path) -> None:
    nodes = (
        FunctionNode(name="first", function=lambda question: question),
        ModelNode(name="last", instruction="Repeat."),
    )
    agent = GraphAgent(name="local", nodes=nodes, edges=(Edge("first", "last"),))
    metric = FunctionMetric(name="never", function=lambda case, run: False)  # noqa: ARG005
    evaluator = Evaluator([metric], gateway=Gateway())
    run = RunDirectory.begin(tmp_path, Engine(agent, evaluator), make_request())
    here = "test_all_parts_without_a_name_are_listed_before_the_run_starts.<locals>"
    assert [note.partition(" has no name")[0] for note in run.notes] == [
        "`promptiter resume` cannot continue this run, only RunDirectory.resume can",
        "evaluator.gateway (Gateway)",
        f"agent.nodes[0].function ({here}.<lambda>)",
        f"metrics['never'].function ({here}.<lambda>)",
    ]
    [listed] = list_runs(tmp_path)
    assert (listed.can_resume, listed.is_named) == (True, False)
    interrupt = Interrupt()
    interrupt.stop("enough")
    run.run_sync(interrupt=interrupt)
    shown = read_summary(run.path)
    assert shown.problems == tuple(run.notes)
    assert [each.purpose for each in shown.commands] == ["details"]


def test_a_run_with_named_parts_has_no_notes(tmp_path: Path) -> None:
    run = RunDirectory.begin(tmp_path, make_engine(), make_request())
    [listed] = list_runs(tmp_path)
    assert (run.notes, listed.can_resume, listed.is_named) == ([], True, True)


def test_a_judge_with_an_address_of_its_own_needs_a_name() -> None:
    model = {"model_name": "tiny", "provider_name": "openai", "base_url": "http://localhost:1", "api_key": "none"}
    rubric = {"id": "1", "content": {"text": "Is it kind?"}}
    judge: Any = {
        "metric_name": "llm_rubric_response",
        "criterion": {"llm_judge": {"judge_model": model, "rubrics": [rubric]}},
    }
    found = find_problem(make_engine(metrics=build_metrics([judge], gateway=named_parts.gateway)))
    assert found.startswith("metrics['llm_rubric_response'] has a judge with an address or key of its own; give it")
    del judge["criterion"]["llm_judge"]["judge_model"]
    served = build_metrics([judge], gateway=named_parts.gateway, judge="simulated")
    assert rebuild_run(describe_parts(make_engine(metrics=served), make_request())).engine.evaluator.metrics == served


def test_secrets_are_not_stored() -> None:
    key = Secret("canary-4711", source="${CANARY}")
    engine = make_engine(named_parts.AddRule(key))
    parts = describe_parts(engine, make_request())
    assert "canary" not in parts.model_dump_json()
    again = rebuild_run(parts, environ={"CANARY": "other"}).engine.search
    assert isinstance(again, named_parts.AddRule)
    assert isinstance(again.rule, Secret)
    assert again.rule.reveal() == "other"
    with pytest.raises(SetupError, match="the environment variable 'CANARY' is not set; export it"):
        rebuild_run(parts, environ={})
    literal = find_problem(make_engine(named_parts.AddRule(Secret("canary-4711"))))
    assert literal == "argument 1 of search is a secret, which is not stored; give it as ${VARIABLE}"
    options = find_problem(make_engine(named_parts.AddRule("password: hunter-4711")))
    assert options.startswith("a case or an option contains a secret, which is not stored")
    data = make_request(train=named_parts.cases("train", "password: hunter-4711"))
    assert find_problem(make_engine(), data) == ""
    named_parts.gateway.redactor.learn(["tea-canary-4711"])
    found = describe_parts(make_engine(), make_request(train=named_parts.cases("train", "tea-canary-4711")))
    assert found.packed == {}
    assert found.problems[0].startswith("a case or an option contains a secret, which is not stored")


@pytest.mark.slow
def test_a_run_that_python_began_resumes_to_the_same_end(tmp_path: Path) -> None:
    named_parts.Watcher.seen.clear()
    engine = make_engine(named_parts.AddRule("Answer with one word."))
    run = RunDirectory.begin(
        tmp_path / "runs", engine, make_request(), observers=[named_parts.Watcher(), named_parts.make_watcher()]
    )
    run.run_sync()
    whole, seen = read_unmeasured(tmp_path / "runs"), len(named_parts.Watcher.seen)
    lines = (run.path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run.path / "journal.jsonl").write_bytes(b"".join(lines[:4]))
    (run.path / "result.json").unlink()
    resumed = resume_run(run.path, settings={"evaluation": {"concurrency": 2}})
    assert resumed.notes == ["the observer Local cannot be built again, so it does not watch the resumed run"]
    resumed.run_sync()
    assert read_unmeasured(tmp_path / "runs") == whole
    assert len(named_parts.Watcher.seen) == seen + len(lines) - 4
    again = load_rerun(run.path).begin()
    assert again.path.parent == run.path.parent
    assert again.path != run.path


def test_a_changed_part_is_reported_when_the_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.begin(tmp_path, make_engine(), make_request())
    other = GraphAgent(name="echo", nodes=(ModelNode(name="echo", instruction="Be kind."),))
    monkeypatch.setattr(named_parts, "agent", other)
    with pytest.raises(ChangedInputsError, match="own value of surface 'echo#instruction' was edited"):
        resume_run(run.path)
    monkeypatch.delattr(named_parts, "agent")
    with pytest.raises(
        SetupError, match=r"was started from Python, and cannot be built again: .*:agent' does not exist"
    ):
        resume_run(run.path)


def test_a_run_with_a_nameless_part_says_so_when_it_is_resumed(tmp_path: Path) -> None:
    run = RunDirectory.begin(tmp_path, make_engine(gateway=Gateway()), make_request())
    with pytest.raises(SetupError) as refused:
        resume_run(run.path)
    assert str(refused.value) == (
        f"the run {str(run.path)!r} was started from Python, and cannot be built again: evaluator.gateway "
        "(Gateway) has no name; assign it to a name at the top level of a module; or resume it from Python: "
        "RunDirectory.resume(folder, engine, request).run_sync()"
    )


SCRIPT = f"""
from {HERE} import agent, cases, gateway
from promptiter import Engine, Evaluator, RunRequest, build_metrics
from promptiter.runs import RunDirectory

def make_own(case, run):
    return 1.0

class Own:
    async def __call__(self, case, run): ...

engine = Engine(agent, Evaluator(build_metrics([{{"metric_name": "own", "evaluator_name": "script:make_own"}}])))
RunDirectory.begin("runs", engine, RunRequest(cases=cases("c", "tea"))).run_sync()
"""


def test_a_script_that_starts_a_run_when_it_is_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SetupError, match="the module 'script' starts a run when it is imported; start it under `if"):
        build_metrics([{"metric_name": "own", "evaluator_name": "script:make_own"}])
    assert not (tmp_path / "runs").exists()
    sys.modules.pop("script", None)


def test_the_folders_of_modules_are_relative_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rules.py").write_text(f"from {HERE} import AddRule\nclass Mine(AddRule): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import own_rules  # type: ignore[import-not-found]

    run = RunDirectory.begin(tmp_path / "runs", make_engine(own_rules.Mine("x")), make_request())
    stored = orjson.loads((run.path / "run.json").read_bytes())["parts"]["folders"]
    assert "../.." in stored
    found = read_header(run.path).parts
    assert found is not None
    assert str(tmp_path) in found.folders
    sys.modules.pop("own_rules")
