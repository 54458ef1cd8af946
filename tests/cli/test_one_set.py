"""A promptiter.yaml with one eval set, `cases`, in every command that reads it."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from promptiter.runlog.results import RunResult
from tests.cli.conftest import Run
from tests.worlds.results import forget_final_tests

HEADLINE = "✓ Improved on these 8 cases, which the search learned from: mean score 0.500 → 1.000 (same in every repeat)"


@pytest.fixture
def project(desk: Path) -> Path:
    """The starter with its validation set as the only one."""
    file = desk / "promptiter.yaml"
    text = re.sub(r"^train:.*\n", "", file.read_text(), flags=re.MULTILINE)
    file.write_text(re.sub(r"^validation:.*$", "cases: data/validation.jsonl", text, flags=re.MULTILINE))
    return desk


def test_the_forecast_has_no_train_cases_to_run(run: Run, project: Path) -> None:
    found = orjson.loads(run("run", "--dry-run", "--json"))
    assert found["configuration"]["cases"] == [str(project / "data" / "validation.jsonl")]
    stages = found["forecast"]["stages"]
    assert stages.get("train", {"calls": {"typical": 0}})["calls"]["typical"] == 0, "the baseline has them already"
    assert stages["baseline"]["calls"]["typical"] == 48
    assert stages["validation"]["calls"]["low"] >= 48, "the accepted profile runs again in the first round too"


@pytest.mark.slow
def test_one_set_can_be_evaluated_under_each_of_its_names(run: Run, project: Path) -> None:
    names = ("cases", "train", "validation")
    found = [orjson.loads(run("evaluate", project, "-e", name, "--json", code=1, stream="out")) for name in names]
    assert [len(each["rows"]) for each in found] == [8] * 3
    assert "test: is missing" in run("evaluate", project, "-e", "test", code=2)
    assert "validation.jsonl  8 cases" in run("check", project)


def test_a_run_that_cannot_show_new_cases_is_refused_if_that_is_required(run: Run, project: Path) -> None:
    refused = (
        "error: --require unseen cannot be met: the search learned from these cases; give a test set (`test`) of 8"
    )
    assert run("run", "--require", "unseen", code=2).startswith(refused)
    assert run("run", "--require", "unseen", "--dry-run", code=2).startswith(refused)
    assert not list((project / "runs").glob("[!.]*")), "nothing was begun"


def test_a_test_set_that_is_too_small_is_noted_before_the_run(run: Run, project: Path) -> None:
    lines = (project / "data" / "train.jsonl").read_text().splitlines()
    (project / "data" / "test.jsonl").write_text("\n".join(lines[:5]))
    with (project / "promptiter.yaml").open("a") as file:
        file.write("\ntest: data/test.jsonl\n")
    few = "5 cases cannot decide about new cases; give at least 8"
    assert f"the test set will not be run: {few}" in " ".join(run("run", "--dry-run", stream="err").split())
    assert f"a run will not use the test set: {few}" in run("check", project)
    assert "give a test set (`test`) of 8 cases or more (this one has 5)" in run("run", "--require", "unseen", code=2)


@pytest.mark.long
def test_a_run_with_one_set_says_everywhere_what_it_may_claim(run: Run, project: Path) -> None:
    shown = run("run", "--json", stream="out")
    assert "8 cases to learn from and validate on; 6 surfaces may change" in run("run", stream="err")
    first, _ = sorted((project / "runs").glob("[!.]*"))
    assert orjson.loads(shown)["shape"] == "one_set"
    lines = run("show", first).splitlines()
    assert HEADLINE in lines
    assert (
        "  not shown for new cases: the search learned from these cases; give a test set (`test`) of 8 cases or more"
        in lines
    )
    assert re.search(r"^cases +baseline +adopted$", "\n".join(lines), flags=re.MULTILINE)
    whole = (first / "result.json").read_bytes()
    result = orjson.loads(whole)
    assert (result["shape"], result["conclusion"]["scope"]) == ("one_set", "these cases")
    journal = first / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:40]))
    (first / "result.json").unlink()
    forget_final_tests(first.parent)
    assert HEADLINE in run("resume", first).splitlines()
    assert RunResult.from_json((first / "result.json").read_bytes()) == RunResult.from_json(whole)
    (first / "result.json").unlink()
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:40]))
    cases = project / "data" / "validation.jsonl"
    cases.write_text(cases.read_text().replace("B-2402", "B-2403"))
    problem = run("resume", first, code=2)
    assert "cases: case 'table' was changed" in problem
    assert "train: " not in problem
