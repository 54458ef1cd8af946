from __future__ import annotations

import copy
import json
import logging
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.errors import MetricError
from promptiter.evaluation.metrics.criteria import (
    FinalResponseCriterion,
    JudgeConfig,
    JudgeModel,
    Limit,
    Options,
    Rubric,
)
from promptiter.evaluation.metrics.eval_config import EvalConfig, MetricConfig
from promptiter.evaluation.metrics.json_match import JsonCriterion
from promptiter.evaluation.metrics.metric_config import load_eval_config, parse_eval_config
from promptiter.evaluation.metrics.text_match import NumericCriterion, RougeCriterion, TextCriterion
from promptiter.evaluation.metrics.trajectory import ToolCriterion, TrajectoryCriterion
from promptiter.llm.secret import Secret, reveal, secrets_in
from traces import digest
from traces.model import Json

DATA = Path(__file__).parents[4] / "shared" / "data"
ENVIRON = {"TRPC_AGENT_MODEL_NAME": "m", "TRPC_AGENT_BASE_URL": "http://localhost", "TRPC_AGENT_API_KEY": "sk-42"}


def parse(document: Json, **environ: str) -> EvalConfig:
    return parse_eval_config(document, source="test_config.json", environ=environ)


def criterion(name: str, given: Json = None, **environ: str) -> Any:
    return parse([{"metric_name": name, "criterion": given}], **environ).metrics[0].criterion


def judge_model(**fields: Json) -> Json:
    return {"llm_judge": {"judge_model": {"model_name": "m", **fields}}}


@pytest.mark.parametrize("spelling", ["snake", "camel"])
def test_a_test_config_is_read_in_snake_case_and_camel_case(spelling: str) -> None:
    text = {"match": "contains", "case_insensitive": True, "length": {"min": 1, "max": 9}}
    tree = {"keep_case": True}
    document: Json = {
        "metrics": [
            {
                "metric_name": "tool_trajectory_avg_score",
                "threshold": 0.8,
                "criterion": {
                    "tool_trajectory": {
                        "default": {
                            "name": {"match": "exact", "case_insensitive": True},
                            "arguments": {"match": "exact", "number_tolerance": 0.5},
                        },
                        "overrides": {"my_tool": {"result": {"ignore_tree": tree}}},
                        "order_sensitive": True,
                        "subset_matching": True,
                    }
                },
            },
            {
                "metric_name": "final_response_avg_score",
                "criterion": {
                    "final_response": {"text": text, "json": {"only_tree": tree}, "rouge": {"type": "rougeL"}}
                },
            },
        ],
        "num_runs": 3,
    }
    raw = json.dumps(document)
    if spelling == "camel":
        for key in (
            *("metric_name", "tool_trajectory", "final_response", "case_insensitive", "num_runs"),
            *("number_tolerance", "order_sensitive", "subset_matching", "ignore_tree", "only_tree"),
        ):
            first, *rest = key.split("_")
            raw = raw.replace(f'"{key}":', f'"{first}{"".join(map(str.title, rest))}":')
        assert '"metricName"' in raw
    any_case, near = TextCriterion(case_insensitive=True), JsonCriterion(number_tolerance=0.5)
    assert parse(json.loads(raw)) == EvalConfig(
        metrics=(
            MetricConfig(
                name="tool_trajectory_avg_score",
                evaluator="tool_trajectory_avg_score",
                threshold=0.8,
                criterion=TrajectoryCriterion(
                    default=ToolCriterion(name=any_case, arguments=near),
                    overrides={
                        "my_tool": ToolCriterion(name=any_case, arguments=near, result=JsonCriterion(ignore_tree=tree))
                    },
                    order_sensitive=True,
                    subset_matching=True,
                ),
                place="test_config.json: metrics[0]",
            ),
            MetricConfig(
                name="final_response_avg_score",
                evaluator="final_response_avg_score",
                criterion=FinalResponseCriterion(
                    text=TextCriterion(match="contains", case_insensitive=True, min_length=1, max_length=9),
                    json=JsonCriterion(only_tree=tree),
                    rouge=RougeCriterion(type="rougeL"),
                ),
                place="test_config.json: metrics[1]",
            ),
        ),
        num_runs=3,
    )


def test_the_short_form_gives_thresholds_and_criteria() -> None:
    config = parse(
        {
            "criteria": {
                "response_match_score": 0.8,
                "tool_trajectory_avg_score": 0,
                "final_response_avg_score": {
                    "threshold": 0.5,
                    "criterion": {"final_response": {"text": {"match": "regex"}}},
                },
                "exact_match": {},
            }
        }
    )
    assert [(metric.name, metric.threshold) for metric in config.metrics] == [
        ("response_match_score", 0.8),
        ("tool_trajectory_avg_score", 0.0),
        ("final_response_avg_score", 0.5),
        ("exact_match", 1.0),
    ]
    assert config.metrics[1].criterion == TrajectoryCriterion()
    assert config.metrics[2].criterion == FinalResponseCriterion(text=TextCriterion(match="regex"))
    assert config.metrics[2].place == "test_config.json: criteria.final_response_avg_score"


def test_metrics_take_precedence_over_criteria_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = parse({"metrics": [{"metric_name": "exact_match"}], "criteria": {"contains": 1}})
    assert [metric.name for metric in config.metrics] == ["exact_match"]
    assert "`criteria` is ignored" in caplog.text


@pytest.mark.parametrize(("given", "threshold"), [({}, 1.0), ({"threshold": None}, 1.0), ({"threshold": 0}, 0.0)])
def test_threshold_defaults_to_1_and_0_stays_0(given: Json, threshold: float) -> None:
    assert parse([{"metric_name": "exact_match", **given}]).metrics[0].threshold == threshold
    assert parse({"criteria": {"exact_match": given}}).metrics[0].threshold == threshold


def test_a_metrics_file_is_an_array_and_an_optimizer_file_has_an_evaluate_block(tmp_path: Path) -> None:
    metrics = [{"metric_name": "exact_match"}]
    array, optimizer = tmp_path / "a.metrics.json", tmp_path / "optimizer.json"
    array.write_text(json.dumps(metrics))
    optimizer.write_text(json.dumps({"evaluate": {"metrics": metrics, "num_runs": 2}, "optimize": {"anything": 1}}))
    assert load_eval_config(array).metrics[0].place == f"{array}: metrics[0]"
    config = load_eval_config(optimizer)
    assert (config.num_runs, config.metrics[0].place) == (2, f"{optimizer}: evaluate.metrics[0]")


def test_built_in_metrics_take_their_options_as_the_criterion() -> None:
    assert criterion("exact_match") == FinalResponseCriterion(text=TextCriterion())
    assert criterion("contains", {"caseInsensitive": True}).text.case_insensitive
    assert criterion("regex", {"expected": r"\d"}) == FinalResponseCriterion(
        text=TextCriterion(match="regex", expected=r"\d")
    )
    assert criterion("length", {"max": 5}).text == TextCriterion(ignore=True, max_length=5)
    assert criterion("json_match", {"schema": {"type": "object"}}).json.schema == {"type": "object"}
    assert criterion("rouge", {"type": "rouge-2"}) == RougeCriterion(type="rouge2")
    assert criterion("numeric", {"which": "first", "relativeTolerance": 0.1}) == NumericCriterion(
        which="first", relative_tolerance=0.1
    )
    assert criterion("tool_trajectory", {"order_sensitive": True}) == TrajectoryCriterion(order_sensitive=True)
    assert criterion("latency", {"limit_s": 2}) == Limit(2.0)
    assert criterion("cost", {"limit_usd": 0.01}) == Limit(0.01)


def test_evaluator_name_selects_the_metric_and_metric_name_is_its_label() -> None:
    config = parse(
        [
            {"metric_name": "short", "evaluator_name": "length", "criterion": {"max": 5}},
            {"metric_name": "long", "evaluatorName": "length", "criterion": {"min": 50}},
        ]
    )
    assert [(metric.name, metric.evaluator) for metric in config.metrics] == [("short", "length"), ("long", "length")]


def test_an_unknown_metric_keeps_its_options() -> None:
    given = {"atLeast": 3, "nested": {"a": ["${NOT_EXPANDED}"]}}
    assert criterion("my_metric", given) == Options(given)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"metrics": [], "num_rums": 1}, r"test_config.json: unknown key 'num_rums' \(did you mean 'num_runs'\?\)"),
        ([{"metric_name": "exact_match", "treshold": 1}], r"metrics\[0\]: unknown key 'treshold' .*'threshold'"),
        (
            [
                {
                    "metric_name": "final_response_avg_score",
                    "criterion": {"final_response": {"text": {"mtach": "exact"}}},
                }
            ],
            r"^test_config.json: metrics\[0\].criterion.final_response.text: unknown key 'mtach' .*'match'",
        ),
        (
            [{"metric_name": "final_response_avg_score", "criterion": {"tool_trajectory": {}}}],
            r"metrics\[0\].criterion: unknown key 'tool_trajectory'; known are final_response",
        ),
        (
            [{"metric_name": "response_match_score", "criterion": {"x": 1}}],
            r"criterion: unknown key 'x'; leave it out$",
        ),
        (
            [{"metric_name": "tool_trajectory", "criterion": {"overrides": {"t": {"args": {}}}}}],
            r"criterion.overrides.t: unknown key 'args'",
        ),
        (
            [{"metric_name": "exact_match", "metricName": "x"}],
            "'metricName' is another spelling of 'metric_name', which is given too",
        ),
        ([{"threshold": 1}], r"metrics\[0\].metric_name: is missing"),
        ([{"metric_name": ""}], r"metric_name: must not be empty"),
        ([{"metric_name": "exact_match", "threshold": "1"}], r"threshold: must be a number, not '1'"),
        ([{"metric_name": "exact_match", "threshold": True}], "threshold: must be a number, not true"),
        ({"criteria": {"exact_match": "high"}}, r"criteria.exact_match.threshold: must be a number, not 'high'"),
        (["exact_match"], r"metrics\[0\]: must be an object, not 'exact_match'"),
        ({"metrics": {}}, "metrics: must be a list, not an object"),
        ({"evaluate": {"metrics": [{}]}}, r"test_config.json: evaluate.metrics\[0\].metric_name"),
        ({}, "has no metrics"),
        (17, "test_config.json: must be an object, not 17"),
        ({"metrics": [{"metric_name": "exact_match"}], "num_runs": 0}, "num_runs: must be at least 1, not 0"),
        ([{"metric_name": "exact_match"}] * 2, r"'exact_match' is taken by test_config.json: metrics\[0\]"),
        (
            [{"metric_name": "final_response_avg_score", "criterion": {"final_response": {}}}],
            "compares nothing; give it text, json or rouge",
        ),
        (
            [
                {
                    "metric_name": "final_response_avg_score",
                    "criterion": {"final_response": {"text": {"match": "fuzzy"}}},
                }
            ],
            r"text.match: must be 'exact', 'contains' or 'regex', not 'fuzzy'",
        ),
        ([{"metric_name": "length"}], "limits nothing"),
        ([{"metric_name": "length", "criterion": {"min": 3, "max": 2}}], r"criterion: length.min 3 is above"),
        ([{"metric_name": "regex", "criterion": {"expected": "("}}], "criterion: .*not a valid regular expression"),
        ([{"metric_name": "json_match", "criterion": {"ignore_tree": {"a": 1}}}], "criterion: ignore_tree.a is 1"),
        ([{"metric_name": "json_match", "criterion": {"schema": {"type": 3}}}], "criterion: the JSON schema"),
        (
            [{"metric_name": "rouge", "criterion": {"type": "rouge-9"}}],
            "criterion.type: must be 'rouge1', 'rouge2' or 'rougeL', not 'rouge-9'",
        ),
        ([{"metric_name": "rouge", "criterion": {"threshold": 0.5}}], "threshold: belongs beside metric_name"),
        ([{"metric_name": "latency"}], r"criterion.limit_s: is missing"),
        ([{"metric_name": "cost", "criterion": {"limit_usd": 0}}], r"criterion.limit_usd: must be above 0, not 0"),
        ({"metrics": [{"metric_name": "x"}], "evaluators": {"x": 1}}, "evaluators.x: must be a string, not 1"),
    ],
)
def test_a_mistake_is_an_error_that_names_its_place(document: Json, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        parse(document)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match=r"none.json: cannot be read: No such file"):
        load_eval_config(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(MetricError, match=r"bad.json: is not valid JSON"):
        load_eval_config(tmp_path / "bad.json")


def test_all_fields_of_a_judge_are_read() -> None:
    given = {
        "llmJudge": {
            "judgeModels": [
                {
                    "modelName": "${NAME}",
                    "providerName": "openai",
                    "baseUrl": "${URL}/v1",
                    "weight": 0.5,
                    "think": False,
                },
                {"model_name": "b", "variant": "v", "num_samples": 3, "generation_config": {"max_tokens": 9}},
            ],
            "modelsAggregator": "weighted_avg",
            "parallel": False,
            "rubrics": [
                {"id": "clear", "content": {"text": "Is it clear?"}, "description": "clarity", "type": "QUALITY"},
                {"id": "short", "content": "Is it short?"},
            ],
            "knowledgeToolNames": ["search"],
        }
    }
    assert criterion("llm_rubric_response", given, NAME="a", URL="http://x") == JudgeConfig(
        models=(
            JudgeModel(model_name="a", provider_name="openai", base_url="http://x/v1", weight=0.5, think=False),
            JudgeModel(model_name="b", variant="v", num_samples=3, generation_config={"max_tokens": 9}),
        ),
        models_aggregator="weighted_avg",
        parallel=False,
        rubrics=(
            Rubric(id="clear", text="Is it clear?", description="clarity", type="QUALITY"),
            Rubric(id="short", text="Is it short?"),
        ),
        knowledge_tool_names=("search",),
    )


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (
            {"judge_model": {"model_name": "a"}, "judge_models": [{"model_name": "b"}]},
            "both judge_model and judge_models",
        ),
        ({"judge_model": {}}, "judge_model.model_name: is missing"),
        ({"judge_model": {"model_name": "a", "weight": -1}}, "weight: must be at least 0, not -1"),
        (
            {"judge_model": {"model_name": "a", "weight": 0}, "models_aggregator": "weighted_avg"},
            "weighted_avg needs a weight above 0",
        ),
        ({"models_aggregator": "most"}, "models_aggregator: must be 'all_pass', .*, not 'most'"),
        ({"rubrics": [{"id": "a", "content": "x"}, {"id": "a", "content": "y"}]}, "two rubrics have the same id"),
        ({"rubrics": [{"id": "a"}]}, r"rubrics\[0\].content: is missing"),
        ({"knowledge_tool_names": [1]}, r"knowledge_tool_names\[0\]: must be a string, not 1"),
    ],
)
def test_a_contradictory_judge_configuration_is_an_error(judge: Json, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        criterion("llm_rubric_response", {"llm_judge": judge})


@pytest.mark.parametrize("field", ["model_name", "base_url", "api_key", "provider_name", "variant"])
def test_an_unset_variable_in_a_judge_model_is_an_error_that_names_it(field: str) -> None:
    with pytest.raises(MetricError, match=rf"judge_model.{field}: the environment variable 'NOT_SET' is not set"):
        criterion("llm_final_response", judge_model(**{field: "x-${NOT_SET}"}), OTHER="1")


def test_variables_come_from_the_process_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTITER_TEST_NAME", "from the process")
    document = [{"metric_name": "llm_final_response", "criterion": judge_model(variant="${PROMPTITER_TEST_NAME}")}]
    judge = parse_eval_config(document).metrics[0].criterion
    assert isinstance(judge, JudgeConfig)
    assert judge.models[0].variant == "from the process"


def test_a_literal_api_key_is_not_copied_anywhere() -> None:
    key = "sk-literal-1234"
    config = parse(
        {
            "metrics": [
                {
                    "metric_name": "llm_final_response",
                    "criterion": judge_model(
                        api_key=key,
                        extra_fields={"headers": [{"Authorization": f"Bearer {key}"}], "user": "me"},
                        generation_config={"api-key": key, "max_tokens": 9},
                    ),
                },
                {"metric_name": "mine", "criterion": {"llm_judge": {"judge_model": {"apiKey": key}}}},
            ],
            "user_simulator_config": {"model": "m", "options": {"api_key": key}},
        }
    )
    dumps = [
        repr(config),
        str(config),
        json.dumps(asdict(config)),
        orjson.dumps(config).decode(),
        f"{config.metrics[0].criterion!r:s}",
        repr(copy.deepcopy(config)),
    ]
    for dump in dumps:
        assert "sk-literal" not in dump
        assert "***" in dump
    assert digest(config) == digest(copy.deepcopy(config))

    judge, mine = config.metrics[0].criterion, config.metrics[1].criterion
    assert isinstance(judge, JudgeConfig)
    assert isinstance(mine, Options)
    [model] = judge.models
    assert model.api_key is not None
    assert model.api_key.reveal() == key
    assert reveal(model.extra_fields) == {"headers": [{"Authorization": f"Bearer {key}"}], "user": "me"}
    assert reveal(model.generation_config) == {"api-key": key, "max_tokens": 9}
    assert reveal(mine.values) == {"llm_judge": {"judge_model": {"apiKey": key}}}
    assert config.user_simulator is not None
    assert reveal(config.user_simulator.options) == {"api_key": key}


def test_a_key_from_a_variable_is_dumped_as_the_variable() -> None:
    judge = criterion("llm_final_response", judge_model(api_key="${KEY}", extra_fields={"x": "a ${KEY}"}), KEY="sk-9")
    assert b"sk-9" not in orjson.dumps(judge)
    assert b'"api_key":"${KEY}"' in orjson.dumps(judge)
    assert "sk-9" not in repr(judge)
    assert judge.models[0].api_key.reveal() == "sk-9"
    assert reveal(judge.models[0].extra_fields) == {"x": "a sk-9"}


@pytest.mark.parametrize("field", ["api_key", "extra_fields", "generation_config"])
def test_an_error_message_does_not_show_a_secret_of_the_wrong_type(field: str) -> None:
    wrong: Json = ["sk-literal"] if field == "api_key" else "sk-literal"
    with pytest.raises(MetricError) as caught:
        criterion("llm_final_response", judge_model(**{field: wrong}))
    assert field in str(caught.value)
    assert "sk-literal" not in str(caught.value)


def test_the_address_of_a_judge_is_not_shown() -> None:
    assert "hunter22" not in repr(JudgeModel(model_name="j", base_url="https://eve:hunter22@example.org"))


def test_the_model_of_the_simulated_user_is_not_a_secret() -> None:
    environ = {"USER_MODEL": "gpt-4o-mini", "ROUTE": "value-1-long"}
    simulator = {"model": "${USER_MODEL}", "options": {"extra_body": {"route": "${ROUTE}"}}}
    found = parse_eval_config(
        {"metrics": [{"metric_name": "exact_match"}], "user_simulator_config": simulator}, environ=environ
    )
    assert found.user_simulator is not None
    assert found.user_simulator.model == "gpt-4o-mini"
    assert secrets_in(found) == ("value-1-long",)


def test_a_pickled_secret_keeps_its_value_and_stays_hidden() -> None:
    secret = pickle.loads(pickle.dumps(Secret("sk-1", source="${KEY}")))
    assert (secret.reveal(), str(secret), repr(secret), f"{secret}") == ("sk-1", "${KEY}", "'***'", "${KEY}")


def test_options_may_be_deep() -> None:
    deep: Json = "x"
    for _ in range(5_000):
        deep = [deep]
    options = criterion("mine", {"deep": deep})
    assert isinstance(options, Options)
    inner = reveal(options.values)["deep"]
    for _ in range(5_000):
        [inner] = inner
    assert inner == "x"


def files() -> list[Path]:
    return sorted([*DATA.glob("*/test_config.json"), *DATA.glob("*/optimizer.json")])


@pytest.mark.skipif(not files(), reason=f"the neighbours' files are not in {DATA}")
def test_trpc_metric_files_are_read_as_they_are() -> None:
    read = {path.parent.name: load_eval_config(path, environ=ENVIRON) for path in files()}
    weather = read["trpc_weather_quickstart"]
    assert [(metric.name, metric.threshold) for metric in weather.metrics] == [
        ("tool_trajectory_avg_score", 0.8),
        ("final_response_avg_score", 0.6),
    ]
    rubric = read["trpc_math_rubric"].metrics[1].criterion
    assert isinstance(rubric, JudgeConfig)
    assert [item.id for item in rubric.rubrics] == ["numeric_correct", "reasoning_clear", "units_present"]
    assert rubric.models[0].generation_config == {"max_tokens": 1024, "temperature": 0.2}
    assert set(read) >= {"trpc_trace_mode", "trpc_multi_agent_pipeline"}
    assert not any("sk-42" in repr(config) for config in read.values())
