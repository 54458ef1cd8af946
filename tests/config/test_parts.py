from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.api import load_resume, load_run, resume_run
from promptiter.backprop.iteration_record import get_iteration
from promptiter.backprop.llm.critic import LLMCritic
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.config.effective_config import build_effective_config
from promptiter.config.fields import PartEntry
from promptiter.config.parts import build_part, build_scorer
from promptiter.engine.run import RunFailedError
from promptiter.errors import ChangedInputsError, RequestError, SetupError
from promptiter.evaluation.executor import LocalExecutor, ThreadExecutor
from promptiter.evaluation.process_executor import ProcessExecutor
from promptiter.policies.stopping import Patience, TargetScore
from promptiter.registry import OBSERVERS, SEARCHES
from promptiter.search.descent.numeric_search import OptunaSearch
from promptiter.search.descent.search import CoordinateDescent
from promptiter.search.gepa import GepaSearch
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.roles import EXECUTOR, OBSERVER, SEARCH, STAGES, Role
from tests.config import own_parts
from tests.config.conftest import FILE, load, problems, write_config
from tests.worlds.quadratic_world import RuleAdder

MODULE = "tests.config.own_parts"


def build(name: str, role: Role = SEARCH, **options: Any) -> Any:
    return build_part(PartEntry(name=f"{MODULE}:{name}", options=options), role, place=role.name)


def refused(name: str, role: Role = SEARCH, **options: Any) -> str:
    with pytest.raises((SetupError, RequestError)) as caught:
        build(name, role, **options)
    return str(caught.value)


def test_a_part_is_a_class_a_function_that_builds_it_or_the_part_itself() -> None:
    one = build("OneRule", rule="Answer in French.", times=2)
    assert (type(one), one.rule, one.times) == (own_parts.OneRule, "Answer in French.", 2)
    assert build("make_search", rule="x").rule == "x"
    assert build("make_search").rule == "Be brief."
    assert build("built_search") is own_parts.built_search


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoSearch", "is the class NoSearch, not a search: it needs `async def search(self, session)` (did you mean"),
        ("seven", "is 7, not a search: it needs `async def search(self, session)`"),
        ("make_nothing", "None is not a search"),
        ("make_search_async", "is async, so it cannot build a search"),
        ("search_function", "needs session; give search.options.session, or name a class or function that builds"),
        ("SyncSearch", "search is not async; define it as `async def search(self, session)`"),
        ("OtherArguments", "search does not fit: too many positional arguments; define it as `async def search("),
        ("OneRule", "needs rule; give search.options.rule"),
        ("Demanding", "cannot be built: ValueError: depth 1 is too little"),
        ("OneRul", "has no 'OneRul' (did you mean 'OneRule'?)"),
    ],
)
def test_the_wrong_kind_of_object_is_refused_before_a_run(name: str, message: str) -> None:
    said = refused(name)
    assert said.startswith("search: ")
    assert message in said


def test_each_option_is_checked_against_the_signature() -> None:
    said = refused("OneRule", rul="x", times="many", how="middle")
    assert said.splitlines()[1:] == [
        "  - search.options.times: must be a whole number, not 'many'",
        "  - search.options.how: must be 'end' or 'start', not 'middle'",
        "  - search.options: unknown key 'rul' (did you mean 'rule'?)",
    ]
    assert "search.options.times: must be a whole number, not true" in refused("OneRule", rule="x", times=True)
    assert "options.limit: must be a whole number or 'none', not 'all'" in refused("Limited", limit="all")
    assert "'tests.config.own_parts:built_search' is already built, so it takes no options" in refused(
        "built_search", rule="x"
    )


@pytest.mark.parametrize(
    ("name", "role", "message"),
    [
        ("OneRule", STAGES["optimizer"], "not an optimizer: it needs `def optimize(self, request)`"),
        ("OwnOptimizer", STAGES["aggregator"], "not an aggregator: it needs `def aggregate(self, request)`"),
        ("OwnOptimizer", OBSERVER, "not an observer: it needs `def observe(self, event)`"),
        ("Collector", EXECUTOR, "not an executor: it needs `def run(self, jobs, host)`"),
    ],
)
def test_every_role_says_what_it_needs(name: str, role: Role, message: str) -> None:
    assert message in refused(name, role)


def test_registered_names_are_found_and_wrong_ones_have_a_suggestion() -> None:
    assert {"backprop", "cheaper", "fewer_tokens"} <= set(SEARCHES.names())
    rounds = build_part(PartEntry(name="backprop", options={"passes": 2}), SEARCH, place="search")
    assert isinstance(rounds, BackpropRounds)
    assert rounds.passes == 2
    with pytest.raises(SetupError, match=r"search: unknown search: 'backprob' \(did you mean 'backprop'\?\)"):
        build_part(PartEntry(name="backprob"), SEARCH, place="search")
    OBSERVERS.register("collector_of_tests", own_parts.Collector)
    assert isinstance(build_part(PartEntry(name="collector_of_tests"), OBSERVER, place=""), own_parts.Collector)


@pytest.mark.parametrize(
    ("role", "name", "options", "message"),
    [
        (SEARCH, "backprop", {"passes": 0}, "search: passes is 0; give a whole number of at least 1"),
        (SEARCH, "backprop", {"most_rerun": -3}, "search: most_rerun is -3; give a whole number of at least 0"),
        (SEARCH, "backprop", {"min_support": 2}, "search: min_support is 2.0; give a number from 0 to 1"),
        (EXECUTOR, "thread", {"threads": 0}, "executor: threads is 0; give a whole number of at least 1"),
        (EXECUTOR, "process", {"workers": -1}, "executor: workers is -1; give a whole number of at least 1"),
        (EXECUTOR, "process", {"workers": 0}, "executor: workers is 0; give a whole number of at least 1"),
    ],
)
def test_options_out_of_range_are_refused(role: Role, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError) as caught:
        build_part(PartEntry(name=name, options=options), role, place=role.name)
    assert str(caught.value) == message


def test_a_scorer_is_a_function_of_a_profile_with_options() -> None:
    def entry(name: str, **options: Any) -> PartEntry:
        return PartEntry(name=f"{MODULE}:{name}", options=options)

    assert build_scorer(entry("scorer")) is own_parts.scorer
    assert build_scorer(entry("score_length")).name == f"{MODULE}:score_length"
    assert build_scorer(entry("score_length", longest=10)).name == f"{MODULE}:score_length"
    for name, message in {
        "seven": "is 7, not a scorer; name a function of a profile",
        "score_two": "needs other; a scorer takes",
        "score_nothing": "takes no arguments; a scorer takes",
    }.items():
        with pytest.raises(SetupError, match=message):
            build_scorer(entry(name))
    with pytest.raises(RequestError, match=r"scorer.options: unknown key 'longst' \(did you mean 'longest'\?\)"):
        build_scorer(entry("score_length", longst=3))


def test_the_value_of_a_variable_may_change_before_a_run_is_resumed_but_not_its_name(folder: Path) -> None:
    stages = 'stages: {optimizer: {name: "tests.config.own_parts:OwnOptimizer", options: {sentence: "${TOKEN}"}}}'
    run = load(folder, stages, TOKEN="first-token").begin()
    loaded = load_resume(run.path, environ={"TOKEN": "second-token"})
    assert loaded.resume(run.path).notes == []
    search = loaded.engine.search
    assert isinstance(search, BackpropRounds)
    assert isinstance(search.optimizer, own_parts.OwnOptimizer)
    assert search.optimizer.sentence == "second-token"
    write_config(folder, FILE + stages.replace("TOKEN", "OTHER"))
    with pytest.raises(ChangedInputsError, match=r"stages\.optimizer\.options\.sentence was"):
        resume_run(run.path, environ={"OTHER": "first-token"})


def test_a_file_names_its_search_stages_observers_executor_and_weights(folder: Path) -> None:
    run = load(
        folder,
        """
        search: {name: backprop, options: {passes: 2}}
        stages:
          backwarder: tests.config.own_parts:OwnBackwarder
          optimizer: {name: "tests.config.own_parts:OwnOptimizer", options: {sentence: Be exact.}}
        observers:
          - tests.config.own_parts:Collector
          - {name: "tests.config.own_parts:Collector", options: {token: "${TOKEN}"}}
        executor: {name: "tests.config.own_parts:OwnExecutor", options: {cluster: big}}
        weights: {exact_match: 2}
        evaluation: {concurrency: 3}
        """,
        TOKEN="a-secret-token",
    )
    search = run.engine.search
    assert isinstance(search, BackpropRounds)
    assert search.passes == 2
    assert isinstance(search.attributor, StepwiseAttributor)
    assert isinstance(search.optimizer, own_parts.OwnOptimizer)
    assert search.optimizer.sentence == "Be exact."
    assert [getattr(each, "token", None) for each in run.observers] == ["", "a-secret-token"]
    executor = run.engine.evaluator.executor
    assert isinstance(executor, own_parts.OwnExecutor)
    assert (executor.cluster, executor.concurrency) == ("big", 3)
    assert run.engine.evaluator.weights == {"exact_match": 2.0}
    assert run.gateway.redactor.redact_text("a-secret-token") == "***"
    assert "a-secret-token" not in repr(run.config)
    document = build_effective_config(run).document
    assert document["observers"][1] == {"name": f"{MODULE}:Collector", "options": {"token": "${TOKEN}"}}
    again = folder / "again.yaml"
    again.write_bytes(orjson.dumps(document))
    assert load_run(again, environ={"TOKEN": "t"}).config.search == run.config.search


@pytest.mark.parametrize(
    ("stage", "name", "problem"),
    [
        (
            "backwarder",
            "SilentBackwarder",
            "SilentBackwarder.backward() returned None; return a value of type Backward",
        ),
        ("attributor", "SilentStages", "SilentStages.attribute() returned None; return a value of type list"),
        (
            "aggregator",
            "SilentStages",
            "SilentStages.aggregate() returned None; return a value of type AggregateResult",
        ),
        ("optimizer", "SilentStages", "SilentStages.optimize() returned None; return a value of type PatchResult"),
    ],
)
def test_a_stage_of_a_file_that_fails_on_everything_ends_the_run(
    folder: Path, stage: str, name: str, problem: str
) -> None:
    run = load(folder, f"stages: {{{stage}: '{MODULE}:{name}'}}")
    with pytest.raises(RunFailedError) as caught:
        run.engine.run_sync(run.request)
    assert caught.value.result.status == "failed"
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"), [("local", LocalExecutor), ("thread", ThreadExecutor), ("process", ProcessExecutor)]
)
def test_the_executors_have_names(folder: Path, name: str, kind: type) -> None:
    assert isinstance(load(folder, f"executor: {name}").engine.evaluator.executor, kind)


def test_a_search_of_ones_own_gets_the_stages_that_it_takes(folder: Path) -> None:
    search = load(folder, f"search: {MODULE}:WithStages\nstages: {{optimizer: simulated}}").engine.search
    assert isinstance(search, own_parts.WithStages)
    assert isinstance(search.optimizer, LLMOptimizer)
    search = load(folder, f"search: {MODULE}:WithStages\nstages: simulated").engine.search
    assert isinstance(search, own_parts.WithStages)
    assert load(folder, f"search: {MODULE}:WithStages").engine.search.optimizer == "mine"  # type: ignore[attr-defined]
    assert problems(folder, f"{FILE}search: {MODULE}:WithStages\nstages: {{aggregator: simulated}}\n") == [
        (
            f"stages.aggregator: the search '{MODULE}:WithStages' has no parameter 'aggregator'; remove the stage, or "
            "choose another search"
        )
    ]


def test_stages_that_ask_a_model_have_options(folder: Path) -> None:
    stages = "{optimizer: {name: simulated, options: {max_prompt_tokens: 50000, model_options: {temperature: 1}}}}"
    optimizer = load(folder, f"stages: {stages}").engine.search.optimizer  # type: ignore[attr-defined]
    assert (optimizer.max_prompt_tokens, optimizer.model_options) == (50_000, {"temperature": 1})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("search: 7", "search: must be a name, module:attr, or a mapping with name and options, not 7"),
        ("search: {nam: backprop}", "search: unknown key 'nam' (did you mean 'name'?)"),
        (
            "search: {name: backprop, options: {pases: 2}}",
            "search.options: unknown key 'pases' (did you mean 'passes'?)",
        ),
        (
            "search: {name: backprop, options: {optimizer: x}}",
            "search.options: unknown key 'optimizer'; it is given as 'stages.optimizer'",
        ),
        (
            "stages: {optimizer: {name: simulated, options: {max_prompt_token: 1}}}",
            "stages.optimizer.options: unknown key 'max_prompt_token' (did you mean 'max_prompt_tokens'?)",
        ),
        ("stages: {optimizer: 'no_such:X'}", "stages.optimizer: cannot import 'no_such': ModuleNotFoundError"),
        (
            "stages: {backwarder: 'OWN:OwnBackwarder', attributor: simulated}",
            "stages: backwarder and attributor both blame; give one of them",
        ),
        ("executor: proces", "executor: unknown executor: 'proces' (did you mean 'process'?)"),
        (
            "executor: {name: local, options: {concurrency: 3}}",
            "executor.options: unknown key 'concurrency'; it is given as 'evaluation.concurrency'",
        ),
        ("observers: ['OWN:OneRule']", "observers[0]: 'OWN:OneRule' is the class OneRule, not an observer"),
        (
            "observers: 'config_agent:agent'",
            "observers[0]: 'config_agent:agent' is an agent, not an observer: it needs `def observe(self, event)`",
        ),
        ("python_path: [., srcc]", "python_path: the folder 'FOLDER/srcc' does not exist; paths are relative"),
        ("models: {simulated: {complience: 1}}", "models.simulated: unknown key 'complience' (did you mean 'complia"),
        ("acceptance: AnyGain", "acceptance: must be a mapping, not 'AnyGain'"),
        ("max_rounds: {a: 1}", "max_rounds: must be a whole number, not a mapping"),
        (
            "weights: {exact_mach: 2}",
            "weights: unknown metric 'exact_mach' in the weights (did you mean 'exact_match'?)",
        ),
        ("weights: {exact_match: high}", "weights.exact_match: must be a number, not 'high'"),
        (
            "scorer: OWN:score_length",
            "scorer: scores without cases and metrics; remove train, validation, metrics",
        ),
    ],
)
def test_each_problem_of_a_part_names_its_key(folder: Path, text: str, expected: str) -> None:
    [problem] = problems(folder, f"{FILE}{text}\n".replace("OWN", MODULE))
    assert problem.startswith(expected.replace("OWN", MODULE).replace("FOLDER", str(folder)))


def test_a_file_with_a_scorer_needs_no_cases(folder: Path) -> None:
    text = f"agent: config_agent:agent\nscorer: {{name: '{MODULE}:score_length', options: {{longest: 10}}}}\n"
    run = load_run(write_config(folder, f"{text}search: {MODULE}:WithStages\nmax_rounds: 0\n"))
    assert run.checked.shape == "scorer"
    result = run.engine.run_sync(run.request)
    assert result.baseline_score == 1.0
    assert "metrics" not in build_effective_config(run).document


def test_observers_of_the_file_watch_the_run(folder: Path) -> None:
    own_parts.Collector.seen.clear()
    run = load(folder, f"observers: {MODULE}:Collector\nmax_rounds: 0")
    run.begin().run_sync()
    assert own_parts.Collector.seen[0] == "run_started"
    assert own_parts.Collector.seen[-1] == "run_completed"


def test_a_metric_of_ones_own_works_from_yaml_and_from_a_metrics_file(folder: Path) -> None:
    metric = f"{{metric_name: short, evaluator_name: '{MODULE}:brevity', criterion: {{longest: 5}}}}"
    run = load_run(write_config(folder, FILE.replace("metrics.json", f"[{metric}]")))
    assert [each.name for each in run.engine.evaluator.metrics] == ["short"]
    named = (
        f"{{metrics: [{{metric_name: brief, criterion: {{longest: 5}}}}], evaluators: {{brief: '{MODULE}:brevity'}}}}"
    )
    run = load_run(write_config(folder, FILE.replace("metrics.json", named)))
    assert [each.name for each in run.engine.evaluator.metrics] == ["brief"]
    wrong = {"metric_name": "brief", "criterion": {"longst": 5}}
    document = {"metrics": [wrong], "evaluators": {"brief": f"{MODULE}:brevity"}}
    (folder / "metrics.json").write_bytes(orjson.dumps(document))
    [problem] = problems(folder, FILE)
    assert problem.startswith("metrics: ")
    assert "unknown key 'longst' in the criterion (did you mean 'longest'?); 'brief' takes longest" in problem


@pytest.mark.parametrize("name", OBSERVERS.built_in_names)
def test_trackers_are_observers_by_name(name: str) -> None:
    built = build_part(PartEntry(name=name, options={"timeout_s": 5}), OBSERVER, place="observers[0]")
    assert (built.name, built.timeout_s) == (name, 5)


def test_a_tracker_whose_package_is_missing_is_refused_before_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    [problem] = problems(folder, FILE + "observers: [tensorboard]")
    assert problem == "observers[0]: tensorboard is not installed; run: pip install 'promptiter[tensorboard]'"


def test_a_wrong_option_of_a_tracker_is_refused(folder: Path) -> None:
    [problem] = problems(folder, FILE + "observers: [{name: wandb, options: {mode: onlin}}]")
    assert "observers[0].options.mode" in problem


def test_gepa_has_the_stages_and_the_options_of_its_reflection_model(folder: Path) -> None:
    run = load(
        folder,
        """
        search:
          name: gepa
          options: {reflection_model: mine, reflection_options: {max_tokens: 9}, module_selector: blame}
        models:
          mine: {model: "tests.config.own_parts:own_model", options: {temperature: 0.6, max_tokens: 5}}
        stages: {optimizer: simulated}
        """,
    )
    search = run.engine.search
    assert isinstance(search, GepaSearch)
    assert search.reflector is not None
    assert (search.reflector.model, search.reflector.model_options) == ("mine", {"temperature": 0.6, "max_tokens": 9})
    assert search.module_selector == "blame"
    assert isinstance(search.optimizer, LLMOptimizer)
    assert problems(folder, f"{FILE}search: {{name: gepa, options: {{module_selectr: all}}}}\n") == [
        "search.options: unknown key 'module_selectr' (did you mean 'module_selector'?)"
    ]


def test_gepa_runs_offline(folder: Path) -> None:
    result = load(folder, "search: gepa_reflective\nmax_rounds: 2").engine.run_sync(load(folder).request)
    assert result.status == "succeeded"
    assert all(get_iteration(each) is not None for each in result.rounds)


def test_coordinate_descent_takes_its_options_and_limits_from_the_file(folder: Path) -> None:
    run = load(
        folder,
        """
        models: {openai/x: {api_key: none, options: {temperature: 0.7}}}
        search:
          name: coordinate_descent
          options:
            phases: [textual, numeric]
            max_cycles: 2
            numeric_max_trials: 12
            critic: openai/x
            applier: tests.worlds.quadratic_world:RuleAdder
            co_optimize: [[echo#instruction, echo#model]]
        """,
    )
    search = run.engine.search
    assert isinstance(search, CoordinateDescent)
    assert (search.max_cycles, search.numeric_max_trials, search.phases) == (2, 12, ["textual", "numeric"])
    assert isinstance(search._critic, LLMCritic)
    assert search._critic.model_options == {"temperature": 0.7}
    assert isinstance(search._applier, RuleAdder)
    assert (run.request.max_rounds, run.request.stop) == (2 * (10 + 12) + 1, TargetScore(1.0))


def test_limits_of_the_file_hold_for_searches_that_end_by_themselves(folder: Path) -> None:
    run = load(folder, "search: {name: optuna, options: {trials: 7}}\nmax_rounds: 3\nstop: {patience: 2}")
    assert isinstance(run.engine.search, OptunaSearch)
    assert (run.request.max_rounds, run.request.stop) == (3, Patience(2))
