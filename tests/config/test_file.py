from __future__ import annotations

import asyncio
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from promptiter.api import load_run
from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.config.agent_section import AgentSection
from promptiter.config.build import build_run
from promptiter.config.effective_config import build_effective_config
from promptiter.config.file import ParsedConfig, RunConfig, read_config
from promptiter.engine.request_checks import merge_eval_sets
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.llm.cache.cache import CacheKey, open_cache
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.secret import Secret
from promptiter.offline.attribution.attributor import EvidenceAttributor
from promptiter.offline.rules.optimizer import RuleOptimizer
from promptiter.policies.goals import Goal
from promptiter.references import is_reference
from promptiter.search.cheaper import ModelDownsizing
from promptiter.search.rounds import BackpropRounds
from promptiter.search.shorter import PromptShortening
from tests.config.conftest import AGENT, FILE, load, problems, write_cases, write_config


def test_a_small_file_has_its_defaults_and_paths_relative_to_itself(folder: Path) -> None:
    config = read_config(write_config(folder, FILE)).config
    assert config.train == (folder / "data" / "train.jsonl",)
    assert config.validation == (folder / "data" / "validation.jsonl",)
    assert config.metrics == folder / "metrics.json"
    assert (config.runs, config.cache, config.max_rounds, config.seed) == (folder / "runs", "memory", None, 0)
    assert read_config(folder).config == config


def test_a_small_file_needs_no_models_for_the_stages(folder: Path) -> None:
    run = load(folder)
    assert isinstance(run.engine.search, BackpropRounds)
    assert isinstance(run.engine.search.attributor, EvidenceAttributor)
    assert isinstance(run.engine.search.aggregator, SupportAggregator)
    assert isinstance(run.engine.search.optimizer, RuleOptimizer)
    assert run.gateway.budget is None
    assert run.engine.evaluator.options.repeats == 2
    assert repr(run.request.acceptance) == "AnyGain()"
    assert run.request.alpha == 0.05
    assert repr(run.request.stop) == "TargetScore(1.0) | Patience(3)"


def test_a_loaded_run_can_be_run(folder: Path) -> None:
    run = load(folder, "max_rounds: 1")
    result = run.engine.run_sync(run.request)
    assert result.status == "succeeded"
    assert result.baseline is not None
    assert [case.case_id for case in result.baseline.cases] == ["honey", "salt"]


def test_settings_win_over_the_file_key_by_key(folder: Path) -> None:
    path = write_config(folder, FILE + "budget: {max_usd: 1.5, max_calls: 7}\nseed: 3\n")
    config = read_config(path, settings={"budget": {"max_usd": 2.0}, "json": True}).config
    assert (config.budget.max_usd, config.budget.max_calls, config.seed, config.as_json) == (2.0, 7, 3, True)


def test_null_counts_as_missing(folder: Path) -> None:
    config = read_config(write_config(folder, FILE + "stop:\nbudget: {max_usd: null}\nteacher: ~\n")).config
    assert (config.stop, config.budget.max_usd, config.teacher) == (None, None, None)


def test_all_problems_of_a_file_are_reported_with_their_places(folder: Path) -> None:
    found = problems(
        folder,
        """
        agent: 7
        trian: data/train.jsonl
        repeats: 2
        metrics: 4
        objective: passrate
        max_rounds: many
        stop: {patiance: 3, minutes: -1}
        evaluation: {concurrency: true}
        hints: [{case_id: x, metric: m, severity: P9}]
        stages: {optimiser: simulated}
        models: {gpt-x: {api_key: "${NOT_SET}", price: {input_usd_per_million: 1}}}
        review: maybe
        """,
    )
    assert found == [
        "agent: must be module:attr, or a mapping with python, call, command, http, remote, yaml or task, not 7",
        "metrics: must be a metrics file, or a list of metrics, not 4",
        "models.gpt-x.api_key: the environment variable 'NOT_SET' is not set; export it",
        "models.gpt-x.price.output_usd_per_million: is missing",
        "stages: unknown key 'optimiser' (did you mean 'optimizer'?)",
        "objective: must be 'mean_score', 'pass_rate' or 'weighted_loss', not 'passrate' (did you mean 'pass_rate'?)",
        "stop.minutes: must be above 0, not -1",
        "stop: unknown key 'patiance' (did you mean 'patience'?)",
        "max_rounds: must be a whole number, not 'many'",
        "evaluation.concurrency: must be a whole number, not true",
        "hints[0].severity: must be 'P0', 'P1', 'P2' or 'P3', not 'P9'",
        "review: must be ask, file, true (the same as ask) or false, not 'maybe'",
        "unknown key 'trian' (did you mean 'train'?)",
        "unknown key 'repeats'; it belongs under 'final_test' or 'evaluation'",
        "train: is missing; name its eval set, or give `cases` to use one set for both, or `data` to split",
        "validation: is missing; name its eval set, or give `cases` to use one set for both, or `data` to split",
    ]


def test_problems_in_the_file_and_behind_it_are_reported_together(folder: Path) -> None:
    (folder / "metrics.json").write_text('{"metrics": [{"metric_name": "exact_mach"}]}')
    found = problems(
        folder,
        """
        agent: config_agent:agnt
        train: [data/train.jsonl, data/more.jsonl]
        validation: data/gone.jsonl
        metrics: metrics.json
        initial_profile: gone.json
        cache: somewhere
        teacher: no_such_module:teacher
        maxrounds: 3
        """,
    )
    gone = "cannot be read: No such file or directory; check the path"
    assert found[:6] == [
        "unknown key 'maxrounds' (did you mean 'max_rounds'?)",
        "agent: 'config_agent' has no 'agnt' (did you mean 'agent'?)",
        (
            f"cache: the cache '{folder}/somewhere' is of an unknown kind; "
            "give 'memory' or a path in .jsonl, .sqlite or .db"
        ),
        found[3],
        f"train: {folder}/data/more.jsonl: {gone}",
        f"validation: {folder}/data/gone.jsonl: {gone}",
    ]
    assert found[3].startswith("metrics: unknown metric: 'exact_mach' (did you mean 'exact_match'?)")
    assert found[6] == f"initial_profile: profile '{folder}/gone.json' cannot be read: No such file or directory"
    assert found[7].startswith("the teacher 'no_such_module:teacher': cannot import 'no_such_module'")
    assert len(found) == 8


def test_unknown_surfaces_are_reported_with_the_nearest_even_if_cases_are_missing(folder: Path) -> None:
    found = problems(folder, "agent: config_agent:agent\nmetrics: metrics.json\ntargets: echo#instructions\n")
    assert (
        "unknown surface 'echo#instructions' (did you mean 'echo#instruction'?); known are echo#instruction, "
        "echo#model, echo#examples" in found
    )


def test_overlap_is_a_problem(folder: Path) -> None:
    write_cases(folder / "data" / "validation.jsonl", "salt", "tea")
    assert problems(folder, FILE) == [
        (
            "train and validation share 1 case: 'tea'; keep each case in one of the sets, or give one set as cases, "
            "if the search may validate on the cases it learns from"
        )
    ]


def test_one_set_may_be_given_for_train_and_validation(folder: Path) -> None:
    text = "agent: config_agent:agent\nmetrics: metrics.json\ncases: data/train.jsonl\n"
    run = load_run(write_config(folder, text + "test: data/validation.jsonl\n"))
    assert (run.checked.shape, run.request.train, run.request.validation) == ("one_set", None, None)
    assert [case.id for case in run.checked.train.cases] == ["tea", "milk", "bread"]
    assert run.checked.validation == run.checked.train
    assert run.checked.test is not None
    document = build_effective_config(run).document
    assert document["cases"] == [str(folder / "data" / "train.jsonl")]
    assert "train" not in document
    either = "cases: are used as train and validation set; give either cases or the two sets"
    assert problems(folder, text + "validation: data/validation.jsonl\n") == [either]
    assert problems(folder, FILE + "cases: data/train.jsonl\n") == [either]
    split = "data: is split into train, validation and test; give either data or the sets"
    assert problems(folder, text + "data: data/train.jsonl\n") == [split]
    gone = f"cases: {folder}/data/gone.jsonl: cannot be read: No such file or directory; check the path"
    assert problems(folder, text.replace("train.jsonl", "gone.jsonl")) == [gone]


def test_data_is_split_by_its_shares(folder: Path) -> None:
    write_cases(folder / "data" / "all.jsonl", *"abcdefghij")
    text = "agent: config_agent:agent\nmetrics: metrics.json\ndata: data/all.jsonl\n"
    run = load_run(write_config(folder, text + "split: {train: 0.5, validation: 0.3, seed: 4}\n"))
    train, validation = (merge_eval_sets(sets or (), name="") for sets in (run.request.train, run.request.validation))
    assert (len(train.cases), len(validation.cases)) == (5, 3)
    assert problems(folder, text + "train: data/train.jsonl\n") == [
        "data: is split into train, validation and test; give either data or the sets"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("split: {train: 0.5}", "split: there is no `data` to split; name eval sets as data, or remove split"),
        ("weights: {exact_match: null}", "weights.exact_match: must be a number, not null"),
        ("evaluators: {own: a:b}", "unknown key 'evaluators'; it belongs under 'metrics'"),
        ("stages: ''", "stages: must not be empty; name a model, or leave stages out"),
        ("search: ''", "search: must not be empty"),
        (
            "targets: [echo]",
            "'echo' is a node, not a surface; its surfaces are echo#instruction, echo#model, echo#examples",
        ),
        ("final_test: {min_detectable_gain: 5}", "final_test.min_detectable_gain: must be at most 1, not 5"),
    ],
)
def test_mistakes_that_could_go_unnoticed_are_refused(folder: Path, text: str, problem: str) -> None:
    assert problems(folder, f"{FILE}\n{text}\n") == [problem]


def test_a_metric_that_is_not_in_a_list_is_refused(folder: Path) -> None:
    [found] = problems(folder, FILE.replace("metrics: metrics.json", "metrics: {metric_name: exact_match}"))
    assert found == "metrics: is one metric, but must be a list of them; write `- metric_name: ...`"


def test_a_key_that_is_given_twice_is_refused(folder: Path) -> None:
    path = write_config(folder, FILE + "stop: {patience: 1}\nstop: {target_score: 0.5}\n")
    with pytest.raises(SetupError, match="line 7: the key 'stop' is given twice; keep one of them"):
        load_run(path)


def test_metrics_may_be_in_the_file(folder: Path) -> None:
    text = FILE.replace("metrics.json", "[{metric_name: short, evaluator_name: length, criterion: {max: 5}}]")
    run = load_run(write_config(folder, text))
    assert [metric.name for metric in run.engine.evaluator.metrics] == ["short"]
    assert problems(folder, text.replace("max", "most")) == [
        "metrics: metrics[0].criterion: unknown key 'most'; known are max, min"
    ]


def test_policies_compose(folder: Path) -> None:
    run = load(
        folder,
        """
        acceptance: {min_gain: 0.02, no_regression: true, protected: salt}
        stop:
          required_metrics: all
          target_score: 0.9
          stop_file: stop
          patience: 2
          minutes: 30
          max_evaluations: 90
          max_calls: 80
          max_tokens: 70
          max_usd: 6
        """,
    )
    assert repr(run.request.acceptance) == "MinGain(0.02) & NoRegression() & Protected()"
    assert run.request.protected == {"salt"}
    assert repr(run.request.stop) == (
        f"RequiredMetrics('all') | TargetScore(0.9) | StopFile('{folder}/stop') | Patience(2) | Deadline(minutes=30.0)"
        " | MaxEvaluations(90) | MaxCalls(80) | MaxTokens(70) | MaxUsd(6.0)"
    )


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("{no_regression: true}", "AnyGain() & NoRegression()"),
        ("{min_gain: 0}", "MinGain(0.0)"),
        ("{sigma_gain: {holdout: skip, repeats: 5}}", "SigmaGain(1.0, 5, 'skip', 5, 0)"),
        ("{tie_break: {by: tokens, min_gain: 0.01}}", "TieBreak(('tokens',), 0.01, False)"),
        (
            "{constraints: [{figure: tokens, at_most_times: 1.1}, {figure: exact_match, at_least: 0.5}]}",
            "AnyGain() & Constraint('tokens', at_most_times=1.1) & Constraint('exact_match', at_least=0.5)",
        ),
        (
            "{sigma_gain: {}, min_gain: 0.1, protected: [salt]}",
            "MinGain(0.1) & SigmaGain(1.0, 3, 'on_train_improve', 5, 0) & Protected()",
        ),
    ],
)
def test_acceptance_has_a_key_for_each_policy(folder: Path, text: str, made: str) -> None:
    assert repr(load(folder, f"acceptance: {text}").request.acceptance) == made


def test_problems_of_policies_are_reported(folder: Path) -> None:
    assert load(folder, "alpha: 0.1").request.alpha == 0.1
    [unknown] = problems(folder, FILE + "acceptance: {tie_break: {by: [token]}}\n")
    assert unknown.endswith("(did you mean 'tokens'?)")
    [clock] = problems(folder, FILE + "acceptance: {constraints: [{figure: latency_s, at_most: 2}]}\n")
    assert clock.startswith("acceptance: latency_s is measured by the clock")


def test_names_in_policies_must_exist(folder: Path) -> None:
    found = problems(
        folder,
        FILE + "stop: {required_metrics: [exact_mach]}\nacceptance: {protected: [sallt]}\n"
        "loss_placements: [{metric: exact_match, node_id: eco}]\nhints: [{case_id: te, metric: exact_match}]\n",
    )
    assert found == [
        "unknown required metric: 'exact_mach' (did you mean 'exact_match'?); known are exact_match",
        "protected case 'sallt' is not in the validation set (did you mean 'salt'?)",
        "the loss placement of 'exact_match' names the node 'eco', which does not exist (did you mean 'echo'?)",
        "a loss hint names the case 'te', which does not exist (did you mean 'tea'?)",
    ]


def test_a_loss_is_best_at_0(folder: Path) -> None:
    assert repr(load(folder, "objective: weighted_loss").request.stop) == "TargetScore(0.0) | Patience(3)"


def test_secrets_are_read_from_the_environment_and_never_shown(folder: Path) -> None:
    more = """
    models:
      openai/house-model:
        api_base: "http://localhost:${PORT}"
        api_key: ${HOUSE_KEY}
        headers: {Authorization: "Bearer ${HOUSE_KEY}"}
    """
    run = load(folder, more, PORT="8080", HOUSE_KEY="a-very-secret-key")
    model = run.gateway.model("openai/house-model")
    assert isinstance(model, LiteLLMModel)
    assert (model.api_base, model.api_key) == ("http://localhost:8080", "a-very-secret-key")
    assert model.headers == {"Authorization": "Bearer a-very-secret-key"}
    assert run.gateway.redactor.redact_text("it is a-very-secret-key") == "it is ***"
    for shown in (repr(run.config), str(run.config), run.config.model_dump_json(), repr(model)):
        assert "a-very-secret-key" not in shown
    assert run.config.model_dump()["models"]["openai/house-model"]["api_key"] == "${HOUSE_KEY}"


def test_the_redactor_knows_all_secrets_of_a_model(folder: Path) -> None:
    more = """
    models:
      gpt-x:
        api_base: https://eve:passw0rd-of-eve@example.org/v1?sig=query-key-1
        api_key: "${PREFIX}-and-${SUFFIX}"
        headers: {X-Team: header-value-1, X-Of: "to ${ROUTE}", User-Agent: harmless-value-1}
        options: {extra_body: {session_token: token-value-1}, stop: harmless-value-2}
    """
    variables = {
        "PREFIX": "prefix-value-1",
        "SUFFIX": "suffix-value-1",
        "ROUTE": "route-value-1",
        "OTHER": "other-value-1",
    }
    run = load(folder, more, **variables)
    redact = run.gateway.redactor.redact_known
    secrets = ["passw0rd-of-eve", "query-key-1", "header-value-1", "token-value-1"]
    for secret in (*secrets, "prefix-value-1-and-suffix-value-1", "prefix-value-1", "suffix-value-1", "route-value-1"):
        assert redact(f"a {secret} b") == "a *** b"
        assert secret not in repr(run)
    for harmless in ("harmless-value-1", "harmless-value-2", "other-value-1", "eve", "example.org"):
        assert redact(harmless) == harmless


def test_a_key_in_a_wrong_place_or_in_an_error_of_the_agent_is_not_shown(folder: Path) -> None:
    assert "models.api_key: must be a mapping, not a string" in problems(folder, "models: {api_key: qwe-123-rty}")
    (folder / "config_agent.py").write_text('raise ValueError("qwe-123-rty is refused")')
    [problem] = problems(folder, FILE + "models: {gpt-x: {api_key: qwe-123-rty}}")
    assert "ValueError: *** is refused" in problem


def test_a_plain_key_is_a_secret_too() -> None:
    models = {"gpt-x": {"api_key": "plainly-written"}}
    config = RunConfig.model_validate({"models": models})
    key = config.models.settings["gpt-x"].api_key
    assert isinstance(key, Secret)
    assert key.reveal() == "plainly-written"
    assert "plainly-written" not in repr(config) + config.model_dump_json()


@pytest.mark.slow
def test_stages_ask_the_models_they_are_given(folder: Path) -> None:
    run = load(folder, "stages: openai/x\nmodels: {openai/x: {api_key: none, options: {temperature: 0.2}}}")
    search = run.engine.search
    assert isinstance(search, BackpropRounds)
    assert isinstance(search.attributor, CheapestAttributor)
    assert (search.attributor.whole.model, search.attributor.backwarder.model) == ("openai/x", "openai/x")
    assert search.attributor.whole.model_options == {"temperature": 0.2}
    assert isinstance(search.aggregator, LLMAggregator)
    assert isinstance(search.optimizer, LLMOptimizer)
    assert (search.optimizer.model, search.optimizer.model_options) == ("openai/x", {"temperature": 0.2})
    search = load(folder, "stages: {optimizer: simulated}").engine.search
    assert isinstance(search, BackpropRounds)
    assert isinstance(search.attributor, EvidenceAttributor)


@pytest.mark.parametrize(
    ("stages", "kind"),
    [
        ("{backwarder: simulated}", StepwiseAttributor),
        ("{attributor: simulated}", LLMAttributor),
        ("{backwarder: simulated, attributor: simulated}", CheapestAttributor),
    ],
)
def test_the_file_chooses_how_blame_is_asked_for(folder: Path, stages: str, kind: type) -> None:
    search = load(folder, f"stages: {stages}").engine.search
    assert isinstance(search, BackpropRounds)
    assert isinstance(search.attributor, kind)
    assert isinstance(search.aggregator, SupportAggregator)


@pytest.mark.parametrize(
    ("stages", "most", "correctors"),
    [
        ("{optimizer: simulated}", None, []),
        ("{backwarder: simulated}", 12, ["ReferenceCorrector"]),
        ("{backwarder: simulated, check_gradients: off}", None, []),
        ("{check_gradients: 5}", 5, ["ReferenceCorrector"]),
        ("{backwarder: simulated, corrector: simulated}", 12, ["ReferenceCorrector", "LLMCorrector"]),
    ],
)
def test_blame_is_checked_by_the_settings(folder: Path, stages: str, most: int | None, correctors: list[str]) -> None:
    search = load(folder, f"stages: {stages}").engine.search
    assert isinstance(search, BackpropRounds)
    check = search.check
    assert (check.most if check else None) == most
    assert [type(each).__name__ for each in (check.correctors if check else ())] == correctors


def test_checking_no_gradients_is_written_as_off(folder: Path) -> None:
    for given in ("0", "on", "true"):
        [found] = problems(folder, FILE + f"stages: {{check_gradients: {given}}}")
        assert found.startswith("stages.check_gradients: must be auto, off or a whole number of at least 1, not ")


@pytest.mark.slow
async def test_budget_prices_and_rates_reach_the_gateway(folder: Path) -> None:
    run = load(
        folder,
        """
        models:
          openai/house:
            api_base: http://house.invalid
            price: {input_usd_per_million: 1, output_usd_per_million: 2}
            requests_per_minute: 5
            timeout_s: 300
        stages: openai/house
        budget: {max_usd: 3, max_calls: 10}
        evaluation: {repeats: 3, concurrency: 40, case_timeout_s: 9, max_errored_fraction: 0.1}
        """,
    )
    price = run.gateway.price("openai/house")
    assert price is not None
    assert (price.input_usd_per_million, price.output_usd_per_million) == (1.0, 2.0)
    assert run.gateway.pool.timeout_s == 300
    options = run.engine.evaluator.options
    assert (options.repeats, options.concurrency, options.case_timeout_s) == (3, 40, 9.0)
    assert options.max_errored_fraction == 0.1


@pytest.mark.slow
def test_a_cap_in_dollars_needs_the_price_of_every_model(folder: Path) -> None:
    caps = "budget: {max_usd: 1}\nstages: openai/x\nmodels: {openai/x: {api_key: none}}\njudge: other-model\n"
    found = problems(folder, FILE + caps)
    assert [each.partition(" is unknown;")[0] for each in found if "price" in each] == [
        "max_usd cannot be enforced: the price of model 'openai/x'",
        "max_usd cannot be enforced: the price of model 'other-model'",
    ]


def test_the_offline_model_has_settings(folder: Path) -> None:
    run = load(folder, "models: {simulated: {compliance: 1.0, knowledge: {the capital of france: Paris}}}")
    assert run.config.models.registered["simulated"].model_dump()["compliance"] == 1.0
    assert problems(folder, FILE + "models: {simulated: {compliance: 2}}") == [
        "models.simulated.compliance: must be at most 1, not 2"
    ]


@pytest.mark.slow
def test_a_teacher_is_a_model_or_an_agent(folder: Path) -> None:
    assert load(folder, "teacher: ollama/llama3:8b").request.teacher == "ollama/llama3:8b"
    teacher = load(folder, "teacher: config_agent:agent").request.teacher
    assert teacher is not None
    assert not isinstance(teacher, str)
    assert [is_reference(text) for text in ("a.b:c.d", "gpt-4o", "ollama/llama3:8b", "llama3:8b")] == [
        True,
        False,
        False,
        False,
    ]


JUDGED = """
metrics:
  - metric_name: polite
    evaluator_name: llm_rubric_response
    criterion: {llm_judge: {rubrics: [{id: polite, content: It is polite.}]}}
"""


def test_a_judge_is_a_model_an_agent_or_a_function(folder: Path) -> None:
    (folder / "config_judge.py").write_text("def judge(message): return {}\n")
    text = FILE.replace("metrics: metrics.json\n", "") + JUDGED
    for judge, is_model in (("simulated", True), ("config_agent:agent", False), ("config_judge:judge", False)):
        (folder / "promptiter.yaml").write_text(f"{text}judge: {judge}\n")
        run = build_run(read_config(folder))
        [metric] = run.checked.evaluator.metrics
        assert isinstance(metric, JudgeMetric)
        assert [(each.name, each.runner is None) for each in metric.judges] == [(judge, is_model)]
    assert problems(folder, f"{text}judge: config_judge:jugde") == [
        ("metrics: metrics[0]: the judge 'config_judge:jugde': 'config_judge' has no 'jugde' (did you mean 'judge'?)")
    ]


def test_modules_are_found_in_python_path(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "config_agent.py").write_text(AGENT.replace('name="echo", nodes', 'name="inner", nodes'))
    (folder / "config_agent.py").unlink()
    assert load(folder, "python_path: src").engine.describe().name == "inner"


def test_a_run_can_be_built_from_python(folder: Path) -> None:
    config = RunConfig(
        agent=AgentSection(python="config_agent:agent"),
        train=(folder / "data" / "train.jsonl",),
        validation=(folder / "data" / "validation.jsonl",),
        metrics=[{"metric_name": "exact_match"}],
        python_path=(folder,),
        max_rounds=2,
    )
    assert build_run(ParsedConfig(config=config)).request.max_rounds == 2
    with pytest.raises(RequestError, match="agent: is missing; name the agent as module:attr"):
        build_run(ParsedConfig(config=RunConfig()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "must be a mapping of keys such as `agent: my_agent:agent`"),
        ("agent: [a\n", "is not valid YAML"),
        ("", "must be a mapping of keys"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_refused(folder: Path, text: str, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        read_config(write_config(folder, text))


def test_a_missing_file_is_reported_with_advice(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"promptiter\.yaml: cannot be read: .*; `promptiter init` writes one"):
        read_config(tmp_path)


def test_a_goal_is_a_name_or_a_mapping(folder: Path) -> None:
    assert load_run(write_config(folder, FILE)).request.goal == Goal()
    assert load_run(write_config(folder, FILE + "goal: score\n")).request.goal == Goal()
    run = load_run(write_config(folder, FILE + "goal: fewer_tokens\nacceptance: {no_regression: true}\n"))
    assert run.request.goal == Goal(kind="fewer_tokens", margin=0.05)
    assert repr(run.request.acceptance) == "NonInferior(0.05, 'tokens', 3) & NoRegression()"
    assert run.request.stop is None
    assert isinstance(run.engine.search, PromptShortening)
    assert build_effective_config(run).document["goal"] == {"fewer_tokens": {"margin": 0.05}}
    assert "stop" not in build_effective_config(run).document
    assert build_effective_config(run).document["targets"] == ["echo#examples", "echo#instruction"]


@pytest.mark.slow
def test_the_goal_of_a_cheaper_model_names_models_and_needs_their_prices(folder: Path) -> None:
    priced = "{price: {input_usd_per_million: 1, output_usd_per_million: 2}}"
    goal = "goal: {cheaper: {models: [small], margin: 0.02}}\n"
    with pytest.raises(RequestError, match="the price of model 'small' is unknown, so it cannot be compared"):
        load_run(write_config(folder, FILE + goal))
    run = load_run(write_config(folder, f"{FILE}{goal}models: {{small: {priced}}}\n"))
    assert run.request.goal == Goal(kind="cheaper", margin=0.02, models=("small",))
    assert repr(run.request.acceptance) == "NonInferior(0.02, 'usd', 3)"
    assert isinstance(run.engine.search, ModelDownsizing)
    assert build_effective_config(run).document["goal"] == {"cheaper": {"models": ["small"], "margin": 0.02}}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "goal: fame",
            "goal: must be score, cheaper or fewer_tokens, or a mapping with one of the last two, not 'fame'",
        ),
        ("goal: {}", "goal: must be score, cheaper or fewer_tokens"),
        ("goal: {cheaper: {}, fewer_tokens: {}}", "goal: must be score, cheaper or fewer_tokens"),
        ("goal: {fewer_tokens: {margin: 0}}", "goal.fewer_tokens.margin: must be above 0, not 0"),
        ("goal: {fewer_tokens: {margin: 1}}", "goal.fewer_tokens.margin: must be below 1, not 1"),
        ("goal: {fewer_tokens: {margn: 0.1}}", "unknown key 'margn' (did you mean 'margin'?)"),
        (
            "goal: fewer_tokens\nreview: true",
            "review: only patches for the score are reviewed, but the goal is fewer_tokens",
        ),
    ],
)
def test_problems_of_a_goal_are_reported(folder: Path, setting: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_run(write_config(folder, f"{FILE}{setting}\n"))
    assert message in str(caught.value)


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)


@pytest.mark.slow
@pytest.mark.usefixtures("no_keys")
def test_missing_keys_and_unknown_models_are_found_before_a_run(folder: Path) -> None:
    (folder / "config_agent.py").write_text(AGENT.replace('name="echo", ins', 'name="echo", model="gpt-4o-mini", ins'))
    anthropic, openai, tiny = problems(
        folder, f"{FILE}teacher: tiny\nstages: {{optimizer: tiny, backwarder: anthropic/claude-sonnet-4-5}}\n"
    )
    assert anthropic.startswith(
        "stages.backwarder: anthropic/claude-sonnet-4-5 needs ANTHROPIC_API_KEY; set it, or models.anthropic/claude-"
    )
    assert openai == (
        "echo#model: gpt-4o-mini needs OPENAI_API_KEY; set it, or models.gpt-4o-mini.api_key in promptiter.yaml"
    )
    assert tiny == (
        "teacher, stages.optimizer: tiny names no provider that litellm knows; write provider/model, such as "
        "openai/tiny, or set models.tiny.api_base in promptiter.yaml to the address of your own server"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_keys")
def test_models_with_a_key_an_address_or_cached_answers_are_not_refused(folder: Path) -> None:
    (folder / "config_agent.py").write_text(AGENT.replace('name="echo", ins', 'name="echo", model="gpt-4o-mini", ins'))
    load(folder, "models: {gpt-4o-mini: {api_key: '${KEY}'}}", KEY="sk-own-key")
    load(folder, "models: {gpt-4o-mini: {api_base: 'http://house.invalid'}}")
    with pytest.raises(RequestError, match="gpt-4o-mini needs OPENAI_API_KEY"):
        load(folder, "cache: answers.sqlite")
    with closing(open_cache(folder / "answers.sqlite")) as cache:
        asyncio.run(cache.put(CacheKey(role="agent", request_digest="d"), ModelReply(text="known")))
    run = load(folder, "cache: answers.sqlite")
    run.gateway.cache.close()


MODELS = """
from promptiter.llm import ModelReply


async def clerk(request, *, repeat):
    return ModelReply(text=f"{len(request.tools)} tools, {sorted(request.schema or {})}")


def echo(messages):
    return messages[-1]["content"]


def make_echo():
    return echo


price = 3
"""


def test_models_of_your_own_are_named_in_nodes_and_in_the_file(folder: Path) -> None:
    sys.modules.pop("own_models", None)  # of another test
    (folder / "own_models.py").write_text(MODELS)
    agent = AGENT.replace('name="echo", ins', 'name="echo", model="own_models:make_echo", ins')
    (folder / "config_agent.py").write_text(agent)
    run = load(folder, "stages: expert\nmodels: {expert: {model: 'own_models:clerk', requests_per_minute: 60}}")
    answers = [
        asyncio.run(run.gateway.ask(ModelRequest(model=name, messages=(Message("user", "hi"),)), CallSite())).text
        for name in ("own_models:make_echo", "expert")
    ]
    assert answers == ["hi", "0 tools, []"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("own_models:nope", "stages: the model 'own_models:nope': 'own_models' has no 'nope'"),
        ("own_models:price", "stages: the model 'own_models:price' is 3; give a function of the messages, or a model"),
        ("nowhere:clerk", "stages: the model 'nowhere:clerk': cannot import 'nowhere': ModuleNotFoundError"),
        pytest.param(
            "gpt-4o",
            "models.expert: model is 'gpt-4o'; name your own model as module:attr, such as my_models:clerk",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "own_models:clerk, api_base: x",
            "models.expert: api_base is for models of a service, and own_models:clerk",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_models_of_your_own_that_cannot_be_used_are_reported(folder: Path, setting: str, message: str) -> None:
    sys.modules.pop("own_models", None)  # of another test
    (folder / "own_models.py").write_text(MODELS)
    problem, *_ = problems(folder, f"{FILE}stages: expert\nmodels: {{expert: {{model: {setting}}}}}\n")
    assert problem.startswith(message)
