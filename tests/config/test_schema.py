from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from promptiter.config.agent_section import AgentSection, PromptEntry
from promptiter.config.descriptions import read_descriptions
from promptiter.config.fields import PartEntry
from promptiter.config.file import ParsedConfig, RunConfig, read_config, read_document
from promptiter.config.model_sections import ModelSettings
from promptiter.config.schema import build_schema, read_schema
from promptiter.config.sections import (
    Acceptance,
    BudgetCaps,
    EvaluationSection,
    FinalTestSection,
    HintEntry,
    LossPlacementEntry,
    PenaltiesSection,
    Shares,
    SourceEntry,
    Stop,
)
from promptiter.config.stages_section import StageEntry, Stages
from promptiter.errors import MetricError
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from traces.model import Json

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
SECTIONS: dict[str, type[BaseModel]] = {
    "Top level": RunConfig,
    "split": Shares,
    "penalties": PenaltiesSection,
    "agent": AgentSection,
    "Parts": PartEntry,
    "stages": Stages,
    "stages.NAME": StageEntry,
    "models.NAME": ModelSettings,
    "acceptance": Acceptance,
    "final_test": FinalTestSection,
    "stop": Stop,
    "budget": BudgetCaps,
    "evaluation": EvaluationSection,
    "loss_placements": LossPlacementEntry,
    "hints": HintEntry,
    "sources": SourceEntry,
}
ACCEPTED = """
train: [a.jsonl, b.jsonl]
validation: a.jsonl
metrics: [{metric_name: exact_match}]
weights: {exact_match: 2}
stages: gpt-4o
search: {name: backprop, options: {passes: 2}}
observers: my:Observer
executor: process
goal: fewer_tokens
final_test: false
budget:
models:
  simulated: {compliance: 1.0}
  gpt-4o: {api_key: "${KEY}", price: {input_usd_per_million: 1, output_usd_per_million: 2}}
acceptance: {protected: a, constraints: [{figure: tokens, at_most: 7}]}
stop: {patience: 2, required_metrics: all}
json: true
---
stages: {backwarder: gpt-4o, optimizer: {name: "my:Optimizer", options: {a: 1}}, check_gradients: off}
observers: ["my:Observer", {name: "my:Other"}]
scorer: my:score
final_test: {repeats: 3}
goal: {cheaper: {models: [small]}}
metrics: metrics.json
---
search: my:Search
executor: {name: my:Executor}
metrics:
  metrics:
    - {metricName: own, evaluatorName: short, threshold: null, criterion: {limit: 3}}
    - {metric_name: contains, threshold: 1}
  evaluators: {short: "my:metric"}
  numRuns: 2
  userSimulatorConfig: {modelName: simulated, max_allowed_invocations: 4}
---
metrics: {criteria: {exact_match: 0.5, contains: {threshold: 1}, json_match: null}, user_simulator_config: {}}
---
metrics: {evaluate: {metrics: [{metric_name: exact_match}]}, optimize: {}}
"""


def find_all_problems(read: ParsedConfig) -> list[str]:
    """The problems of a configuration, with those of its metrics, except that there are none."""
    metrics, found = read.config.metrics, list(read.problems)
    if isinstance(metrics, list | dict):
        try:
            parse_eval_config(metrics, environ={})
        except MetricError as error:
            found += [] if "has no metrics" in str(error) else [str(error)]
    return found


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    return Draft202012Validator(orjson.loads(build_schema()))


def test_the_shipped_schema_is_current() -> None:
    assert read_schema() == build_schema(), "run `make schema`"


def test_the_schema_is_one(schema: Draft202012Validator) -> None:
    Draft202012Validator.check_schema(schema.schema)


@pytest.mark.parametrize(
    "document", list(yaml.safe_load_all(ACCEPTED)), ids=["first", "second", "metrics", "criteria", "optimizer.json"]
)
def test_what_the_reader_accepts_is_valid(schema: Draft202012Validator, document: dict[str, Any]) -> None:
    given = {key: value for key, value in document.items() if value is not None}  # as the file is read
    read = read_document(given, file=Path("promptiter.yaml"), environ={"KEY": "k"})
    assert find_all_problems(read) == []
    assert [error.message for error in schema.iter_errors(document)] == []


def test_the_starter_is_valid_and_names_the_schema(schema: Draft202012Validator) -> None:
    text = (files("promptiter") / "starter" / "promptiter.yaml").read_text()
    assert text.splitlines()[0] == "# yaml-language-server: $schema=promptiter.schema.json"
    assert [error.message for error in schema.iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize(
    "document",
    [
        {"metrcs": "metrics.json"},
        {"max_rounds": "many"},
        {"stop": {"patiance": 3}},
        {"stages": {"optimiser": "gpt-4o"}},
        {"models": {"gpt-4o": {"api_keys": "x"}}},
        {"models": {"simulated": {"complience": 1}}},
        {"search": {"nam": "backprop"}},
        {"observers": [7]},
        {"goal": "fame"},
        {"alpha": 2},
        {"metrics": [{"metric_name": "contains", "threshold": "0.5"}]},
        {"metrics": [{"metric_name": "contains", "criterion": []}]},
        {"metrics": [{"metric": "contains"}]},
        {"metrics": [{"metric_name": "contains", "metricName": "contains"}]},
        {"metrics": {"metrics": [{"metric_name": "contains"}], "evaluators": ["my:metric"]}},
        {"metrics": {"metric_name": "contains"}},
        {"metrics": ["contains"]},
    ],
    ids=str,
)
def test_what_the_reader_refuses_is_not_valid(schema: Draft202012Validator, document: dict[str, Any]) -> None:
    assert find_all_problems(read_document(document, file=Path("promptiter.yaml"), environ={}))
    assert list(schema.iter_errors(document))


def test_the_names_of_built_in_parts_are_offered() -> None:
    keys = orjson.loads(build_schema())["properties"]
    offered = {key: keys[key]["anyOf"][0]["enum"] for key in ("search", "executor")}
    assert offered == {
        "search": [
            *("backprop", "cheaper", "coordinate_descent", "edits", "few_shot", "fewer_tokens"),
            *("gepa", "gepa_reflective", "learned_patches", "optuna", "random"),
        ],
        "executor": ["local", "process", "thread"],
    }


VALUES: tuple[Json, ...] = (None, 3, -1, 0, 1.5, "x", True, False, [], {}, [3], ["x"], [{}], [None], {"y": 1})


class Places:
    """Every key of a schema, at any depth, as documents with a given value under that key."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.found: dict[str, Callable[[Json], Json]] = {}
        self._collect(root, put=lambda value: value, path=())

    def _collect(self, schema: dict[str, Any], put: Callable[[Json], Json], path: tuple[str, ...]) -> None:
        schema = self._resolve(schema)
        for each in schema.get("anyOf", ()):
            self._collect(each, put, path)
        if "items" in schema:
            self._collect(schema["items"], lambda value: put([value]), path)
        keys = dict(schema.get("properties", {}))
        if isinstance(schema.get("additionalProperties"), dict):
            keys["other"] = schema["additionalProperties"]
        spelled = [each["oneOf"][0]["required"][0] for each in schema.get("allOf", ())]
        needs = [*schema.get("required", ()), *spelled]
        needed = {key: self._find_sample(keys[key]) for key in needs}
        for key, below in keys.items():
            place = partial(self._put, put, needed, key)
            self.found.setdefault(".".join((*path, key)), place)
            self._collect(below, place, (*path, key))

    @staticmethod
    def _put(put: Callable[[Json], Json], needed: dict[str, Json], key: str, value: Json) -> Json:
        return put({**needed, key: value})

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        return self.root["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    def _find_sample(self, schema: dict[str, Any]) -> Json:
        schema = self._resolve(schema)
        return {"string": "x", "number": 1, "object": {}}[
            schema["anyOf"][0]["type"] if "anyOf" in schema else schema["type"]
        ]


PLACES = Places(orjson.loads(read_schema())).found


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_schema_and_reader_accept_the_same_values_under_every_key(
    schema: Draft202012Validator, place: str, tmp_path: Path
) -> None:
    file = tmp_path / "promptiter.yaml"
    for value in VALUES:
        document = PLACES[place](value)
        file.write_text(yaml.safe_dump(document))
        problems = find_all_problems(read_config(file, environ={}))
        assert bool(problems) == any(schema.iter_errors(document)), (document, problems)


def test_all_keys_are_compared() -> None:
    keys = {key for section in SECTIONS.values() for key in read_descriptions(section)}
    assert keys <= {name for place in PLACES for name in place.split(".")}


OPEN: dict[str, type[BaseModel]] = {"agent.prompts.NAME": PromptEntry}
"""Sections that the schema leaves open, since a prompt may be any value."""


@pytest.mark.parametrize("title", [*SECTIONS, *OPEN])
def test_keys_are_described_as_on_the_configuration_page(title: str) -> None:
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", section, re.MULTILINE)
    shown = {key: re.sub(r"; see below| See \[[^]]*\]\([^)]*\)\.", "", text) for key, text in rows}
    assert shown == read_descriptions({**SECTIONS, **OPEN}[title])


@pytest.mark.slow
def test_every_key_of_every_section_is_described() -> None:
    whole = orjson.loads(build_schema())
    found = {"promptiter.yaml": whole, **whole["$defs"]}
    keys = [(name, key, each) for name, one in found.items() for key, each in one.get("properties", {}).items()]
    assert [(name, key) for name, key, each in keys if not each.get("description")] == []
