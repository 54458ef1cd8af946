"""What a request may change about the run of an app, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.config.configured_run import ConfiguredRun
from promptiter.config.file import read_config
from promptiter.config.overlay import build_overlaid_run, read_overlay
from promptiter.errors import RequestError
from tests.config.conftest import FILE, write_cases, write_config
from traces.model import Json


def build(folder: Path, more: str = "", **given: Json) -> ConfiguredRun:
    parsed = read_config(write_config(folder, FILE + more), environ={})
    return build_overlaid_run(parsed, read_overlay(given), environ={})


def find_problems(folder: Path, more: str = "", **given: Json) -> list[str]:
    with pytest.raises(RequestError) as caught:
        build(folder, more, **given)
    return list(caught.value.problems)


def list_cases(run: ConfiguredRun, name: str) -> list[str]:
    [eval_set] = [getattr(run.checked, name)]
    return [case.id for case in eval_set.cases]


def test_without_changes_it_is_the_run_of_the_file(folder: Path) -> None:
    run = build(folder, "max_rounds: 3\n")
    assert run.request.max_rounds == 3
    assert list_cases(run, "train") == ["tea", "milk", "bread"]


def test_settings_are_merged_with_those_of_the_file(folder: Path) -> None:
    run = build(
        folder,
        "stop: {patience: 7}\nbudget: {max_calls: 50, max_tokens: 3000}\n",
        max_rounds=2,
        stop={"target_score": 0.9},
        budget={"max_calls": 10},
        seed=5,
        evaluation={"repeats": 3, "concurrency": 2},
        targets="echo#instruction",
        acceptance={"min_gain": 0.1},
    )
    config = run.config
    assert (run.request.max_rounds, config.seed, config.evaluation.repeats, config.acceptance.min_gain) == (
        2,
        5,
        3,
        0.1,
    )
    assert config.stop is not None
    assert (config.stop.patience, config.stop.target_score) == (7, 0.9)
    assert (config.budget.max_calls, config.budget.max_tokens) == (10, 3000)
    assert run.checked.targets == ("echo#instruction",)


def test_a_request_cannot_exceed_the_caps_of_the_file(folder: Path) -> None:
    caps = "budget: {max_calls: 50}\nevaluation: {concurrency: 4}\n"
    assert find_problems(folder, caps, budget={"max_calls": 51}, evaluation={"concurrency": 5}) == [
        "budget.max_calls: is 51, and the app allows at most 50",
        "evaluation.concurrency: is 5, and the app allows at most 4",
    ]
    assert build(folder, caps, budget={"max_tokens": 10**6}).config.budget.max_calls == 50


def test_eval_sets_are_given_by_id_or_as_cases(folder: Path) -> None:
    write_cases(folder / "data" / "more.jsonl", "jam")
    registered = "server: {eval_sets: {more: data/more.jsonl}}\n"
    run = build(folder, registered, train=["train", "more"], validation={"cases": [{"input": "Hi?", "expected": "Hi"}]})
    assert list_cases(run, "train") == ["tea", "milk", "bread", "jam"]
    assert [case.turns[0].user for case in run.checked.validation.cases] == ["Hi?"]
    both = build(folder, registered, cases="more")
    assert (both.checked.shape, list_cases(both, "train")) == ("one_set", ["jam"])
    swapped = build(folder, train="validation", validation="train")
    assert list_cases(swapped, "train") == ["salt", "honey"]


def test_a_test_set_of_the_file_stays(folder: Path) -> None:
    write_cases(folder / "data" / "test.jsonl", "jam")
    run = build(folder, "test: data/test.jsonl\n", train={"cases": [{"id": "x", "input": "a", "expected": "b"}]})
    assert run.checked.test is not None
    assert [list_cases(run, name) for name in ("train", "validation", "test")] == [["x"], ["salt", "honey"], ["jam"]]


def test_unknown_names_are_refused_with_the_nearest(folder: Path) -> None:
    registered = "server: {judges: {strict: gpt-4o}}\n"
    assert find_problems(
        folder, registered, train="trian", judge="strikt", teacher="gpt-4o", metrics="metrics.json"
    ) == [
        "metrics: the app has no metrics 'metrics.json'; none is registered",
        "judge: the app has no judge 'strikt' (did you mean 'strict'?)",
        "teacher: the app has no teacher 'gpt-4o'; none is registered",
        "train: the app has no eval set 'trian' (did you mean 'train'?)",
    ]
    [problem] = find_problems(folder, targets=["eko#instruction"])
    assert "did you mean 'echo#instruction'" in problem


@pytest.mark.parametrize(
    "given",
    [
        {"agent": "os:system"},
        {"models": {"gpt-4o": {"api_base": "http://169.254.169.254"}}},
        {"search": "os:system"},
        {"stages": "os:system"},
        {"observers": ["os:system"]},
        {"python_path": ["/tmp"]},
        {"scorer": "os:system"},
        {"executor": "os:system"},
        {"cache": "/etc/passwd"},
        {"runs": "/etc"},
        {"sources": {"echo#instruction": "/etc/passwd"}},
        {"apply": True},
        {"output_dir": "/etc"},
        {"server": {"judges": {"x": "os:system"}}},
        {"stop": {"stop_file": "/etc/passwd"}},
        {"budget": {"allow_unknown_price": True}},
        {"evaluation": {"max_errored_fraction": 1.0}},
        {"initial_profile": "/etc/passwd"},
        {"train": {"file": "/etc/passwd"}},
        {"train": {"cases": []}},
        {"data": "/etc/passwd"},
        {"final_test": False},
        {"max_rounds": "4"},
        {"seed": 1.5},
        {"budget": {"max_usd": float("nan")}},
    ],
)
def test_nothing_else_can_be_changed(folder: Path, given: dict[str, Json]) -> None:
    assert find_problems(folder, **given)


def test_paths_are_ids_that_nobody_registered(folder: Path) -> None:
    for path in ("/etc/passwd", "data/train.jsonl", "../promptiter.yaml", str(folder / "data" / "train.jsonl")):
        [problem] = find_problems(folder, train=path)
        assert problem.startswith(f"train: the app has no eval set {path!r}")


def test_an_initial_profile_is_given_by_value(folder: Path) -> None:
    values: dict[str, Json] = {"echo#instruction": "Say the word."}
    run = build(folder, initial_profile={"values": values})
    assert run.request.initial_profile is not None
    assert run.request.initial_profile.overrides == values
    structure_id = run.engine.describe().structure_id
    assert build(folder, initial_profile={"structure_id": structure_id, "values": values}).request.initial_profile
    [problem] = find_problems(folder, initial_profile={"structure_id": "other", "values": values})
    assert problem.startswith("initial_profile: the profile is of another structure")
    [problem] = find_problems(folder, initial_profile={"values": {"eko#instruction": "x"}})
    assert "did you mean 'echo#instruction'" in problem


@pytest.mark.parametrize("surface_id", [["a"], {}, None, 3])
def test_the_surface_of_an_override_is_a_string(surface_id: Json) -> None:
    with pytest.raises(RequestError, match="the surface_id of an override must be a string"):
        read_overlay({"initial_profile": {"overrides": [{"surface_id": surface_id, "value": "x"}]}})


def test_a_budget_may_be_as_large_as_a_number_can_be(folder: Path) -> None:
    assert build(folder, budget={"max_usd": 1e308}).config.budget.max_usd == 1e308


def test_names_and_keys_that_are_wrong_are_quoted_in_part(folder: Path) -> None:
    long = "x" * 100_000
    assert all(len(each) < 500 for each in find_problems(folder, train=[long, long], judge=long))
    with pytest.raises(RequestError, match=r"unknown key 'xxx.*… \(100,002 characters\)") as refused:
        read_overlay({long: 1})
    assert len(str(refused.value)) < 1000


def test_runs_of_an_app_share_models_but_not_budgets(folder: Path) -> None:
    first = build(folder)
    parsed = read_config(folder, environ={})
    runs = [
        build_overlaid_run(parsed, read_overlay({"budget": {"max_calls": calls}}), environ={}, base=first)
        for calls in (3, 5)
    ]
    assert all(run.gateway.shares_models_with(first.gateway) for run in runs)
    assert [run.config.budget.max_calls for run in runs] == [3, 5]
    assert runs[0].gateway.budget is not runs[1].gateway.budget
