from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import yaml
from jsonschema import Draft202012Validator

from promptiter.config.task_yaml.starter import FILES, TASK
from promptiter.config.task_yaml.task_schema import build_task_schema, read_task_schema
from tests.worlds.file_task import AS_PRINTED


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    return Draft202012Validator(orjson.loads(read_task_schema()))


def test_the_shipped_schema_is_current() -> None:
    assert read_task_schema() == build_task_schema()


@pytest.mark.parametrize("text", [AS_PRINTED, TASK])
def test_tasks_fit_the_schema(schema: Draft202012Validator, text: str) -> None:
    assert list(schema.iter_errors(yaml.safe_load(text))) == []


@pytest.mark.parametrize("change", [{"mutaton": {}}, {"repeats": 0}, {"constraints": [{"metric": "a", "op": "=<"}]}])
def test_mistakes_do_not_fit_it(schema: Draft202012Validator, change: dict[str, object]) -> None:
    assert list(schema.iter_errors({**yaml.safe_load(AS_PRINTED), **change}))


def test_every_key_is_described() -> None:
    whole = orjson.loads(read_task_schema())
    found = {"task.yaml": whole, **whole["$defs"]}
    keys = [(name, key, each) for name, one in found.items() for key, each in one.get("properties", {}).items()]
    assert [(name, key) for name, key, each in keys if not each.get("description")] == []


def test_the_example_is_the_starter() -> None:
    folder = Path(__file__).parents[3] / "examples" / "skill_quality"
    example = {path: (folder / path).read_text(encoding="utf-8") for path in FILES}
    assert example == {**FILES, "task.yaml": TASK.partition("\n")[2]}
