"""The run that validates learned patches."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.config.file import FILE_NAME, read_document
from promptiter.config.learned_run import choose_metrics, read_learned_run
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.evaluation.data.evalset_rows import write_lines
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.tasks.learned_patches import read_patches, write_patches
from promptiter.tasks.lesson_files import LEARNED_CASES, PATCHES


def make_patches(value: str) -> PatchSet:
    return PatchSet((SurfacePatch(surface_id="desk#instruction", value=value, reason="because"),))


def test_a_run_keeps_its_patches_and_cases_when_something_else_is_learned(tmp_path: Path) -> None:
    write_patches(tmp_path / PATCHES, make_patches("first"))
    (tmp_path / LEARNED_CASES).write_bytes(write_lines([EvalCase(id="first", turns=(Turn(user="Hello?"),))]))
    run = read_learned_run(read_document({}, file=tmp_path / FILE_NAME), tmp_path)
    write_patches(tmp_path / PATCHES, make_patches("second"))
    (tmp_path / LEARNED_CASES).unlink()
    assert [case.id for file in run.config.cases for case in load_eval_set(file).cases] == ["first"]
    assert run.config.search is not None
    assert read_patches(str(run.config.search.options["patches"])) == make_patches("first")


@pytest.mark.parametrize(
    ("expected", "model", "metric"),
    [
        ('{"fee": 3}', None, "json_match"),
        ("The fee is 3.", None, None),
        ("The fee is 3.", "gpt-4o", "llm_final_response"),
        (None, "gpt-4o", None),
    ],
)
def test_references_say_which_metric_validates_without_others(
    expected: str | None, model: str | None, metric: str | None, tmp_path: Path
) -> None:
    case = EvalCase(id="a", turns=(Turn(user="How much?", expected=expected),))
    (tmp_path / LEARNED_CASES).write_bytes(write_lines([case]))
    config = read_document({"stages": model} if model else {}, file=tmp_path / FILE_NAME).config
    assert [each["metric_name"] for each in choose_metrics(config, tmp_path)] == ([metric] if metric else [])
