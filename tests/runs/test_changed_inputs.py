from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.policies.acceptance import MinGain
from promptiter.policies.stopping import Patience
from promptiter.profile import Profile
from promptiter.runs.changed_inputs import find_changed_inputs
from promptiter.runs.header import Configuration, RunHeader, build_header
from tests.runs.test_header import CONFIG, WHEN, header
from tests.worlds import desk


def agent(*instructions: str, names: tuple[str, ...] = ("draft", "polish")) -> Engine:
    nodes = [ModelNode(name=n, instruction=i, model="scripted") for n, i in zip(names, instructions, strict=True)]
    graph = GraphAgent(name="desk", nodes=tuple(nodes), edges=(Edge(*names),))
    return Engine(graph, desk.evaluator(), search=desk.Tries())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seed": 1}, ["seed was 0 and is now 1"]),
        ({"max_rounds": 6}, ["max_rounds was 4 and is now 6"]),
        ({"acceptance": MinGain(0.5)}, ["acceptance was AnyGain() and is now MinGain(0.5)"]),
        ({"stop": Patience(1)}, ["stop is new: Patience(1)"]),
        ({"objective": "pass_rate"}, ["objective was mean_score and is now pass_rate"]),
        ({"teacher": "gpt"}, ["teacher is new: gpt"]),
        ({"protected": frozenset({"validation-1"})}, ['protected was [] and is now ["validation-1"]']),
        (
            {"targets": ["draft#instruction"]},
            ['targets was ["draft#instruction","polish#instruction"] and is now ["draft#instruction"]'],
        ),
    ],
)
def test_changed_settings_are_reported(changes: dict[str, Any], expected: list[str]) -> None:
    assert find_changed_inputs(header(), header(**changes)) == expected


def test_another_initial_profile_is_reported() -> None:
    profile = Profile.of(desk.agent().describe(), desk.DRAFT)
    [change] = find_changed_inputs(header(), header(initial_profile=profile))
    assert change.startswith("initial_profile is new: ")


ADDED = ("train-3", "train-4", "train-5", "train-6", "train-7")


def shuffled(eval_set: EvalSet) -> EvalSet:
    return replace(eval_set, cases=tuple(reversed(eval_set.cases)))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: replace(s, cases=s.cases[1:]), "train: case 'train-0' was removed"),
        (lambda _: desk.eval_set("train", 5), "train: case 'train-3' is new, case 'train-4' is new"),
        (
            lambda s: replace(
                s, cases=(replace(s.cases[1], id="train-0"), replace(s.cases[0], id="train-1"), s.cases[2])
            ),
            "train: case 'train-0' was changed, case 'train-1' was changed",
        ),
        (shuffled, "train: the order of the cases has changed"),
        (lambda s: replace(s, id="more"), "train: the eval set was 'train' and is now 'more'"),
        (
            lambda _: desk.eval_set("train", 12),
            f"train: {', '.join(f'case {name!r} is new' for name in ADDED)} and 4 more",
        ),
    ],
)
def test_changed_cases_are_reported_by_name(change: Callable[[EvalSet], EvalSet], expected: str) -> None:
    train = desk.eval_set("train", 3)
    assert find_changed_inputs(header(train=train), header(train=change(train))) == [expected]


def test_a_changed_validation_set_is_reported() -> None:
    expected = find_changed_inputs(header(), header(validation=desk.eval_set("validation", 3)))
    assert expected == ["validation: case 'validation-2' is new"]


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (agent("Draft well.", "Polish."), ["the agent's own value of surface 'draft#instruction' was edited"]),
        (
            agent("Draft.", "Polish.", names=("draft", "check")),
            [
                "the agent no longer has the surfaces 'polish#instruction', 'polish#model', 'polish#examples'",
                "the agent has new surfaces: 'check#instruction', 'check#model', 'check#examples'",
            ],
        ),
        (
            agent("Polish.", "Draft.", names=("polish", "draft")),
            ["the agent has different nodes or edges, or surfaces of another type"],
        ),
    ],
)
def test_a_changed_agent_is_reported(engine: Engine, expected: list[str]) -> None:
    before = header(agent("Draft.", "Polish."), targets=["draft#instruction"])
    assert find_changed_inputs(before, header(engine, targets=["draft#instruction"])) == expected


def test_a_changed_metric_is_reported() -> None:
    other = desk.engine(desk.DRAFT)
    other.evaluator.weights["careful"] = 2.0
    assert find_changed_inputs(header(), header(other)) == ["weights.careful is new: 2.0"]


def test_changed_configuration_keys_are_reported_by_path() -> None:
    config = {**CONFIG, "stop": {"minutes": 60}, "review": True, "teacher": "gpt", "models": {}}
    assert find_changed_inputs(header(), header(config=config)) == [
        "stop.minutes was 30 and is now 60",
        "models.gpt-4.1.api_base was https://example.org and has been removed",
        "teacher is new: gpt",
    ]


def test_a_change_in_a_list_of_settings_is_reported_by_its_place() -> None:
    def with_limit(limit: int) -> RunHeader:
        metrics = [{"metric_name": "exact_match"}, {"metric_name": "short", "criterion": {"limit": limit}}]
        observers = [{"name": "log", "options": {"limit": limit}}]
        document = {"metrics": metrics, "observers": observers}
        return replace_configuration(document)

    def replace_configuration(document: dict[str, Any]) -> RunHeader:
        return header().model_copy(update={"configuration": Configuration(file="", document=document)})

    assert find_changed_inputs(with_limit(120), with_limit(100)) == [
        "metrics[1].criterion.limit was 120 and is now 100"
    ]


def test_one_change_is_reported_once() -> None:
    assert find_changed_inputs(header(), header(config={**CONFIG, "max_rounds": 6}, max_rounds=6)) == [
        "max_rounds was 4 and is now 6"
    ]


def test_settings_that_do_not_affect_results_may_change() -> None:
    model = {"api_base": "https://example.org", "api_key": "${OTHER}", "timeout_s": 60, "requests_per_minute": 5}
    config = {
        **CONFIG,
        "quiet": True,
        "runs": "elsewhere",
        "evaluation": {"concurrency": 1, "repeats": 2},
        "models": {"gpt-4.1": model},
    }
    assert find_changed_inputs(header(), header(config=config)) == []
    assert (
        find_changed_inputs(
            header(config={"agent": "a"}), header(config={"agent": "a", "evaluation": {"concurrency": 1}})
        )
        == []
    )


def test_a_price_may_change_unless_the_goal_is_to_be_cheaper() -> None:
    price = {"input_usd_per_million": 1, "output_usd_per_million": 2}
    config = {**CONFIG, "models": {"gpt-4.1": {**CONFIG["models"]["gpt-4.1"], "price": price}}}
    assert find_changed_inputs(header(), header(config=config)) == []
    cheaper = {"request": {**header().request, "goal": {"kind": "cheaper"}}}
    before, after = (each.model_copy(update=cheaper) for each in (header(), header(config=config)))
    assert find_changed_inputs(before, after)[0] == "models.gpt-4.1.price.input_usd_per_million is new: 1"


def test_files_are_compared_by_content(tmp_path: Path) -> None:
    def with_files(**texts: str) -> RunHeader:
        paths = {}
        for name, text in texts.items():
            paths[f"{name}.json"] = tmp_path / f"{name}.json"
            paths[f"{name}.json"].write_text(text)
        configuration = Configuration(file="promptiter.yaml", files={name: str(path) for name, path in paths.items()})
        return build_header(
            desk.engine(), desk.engine().check(desk.request()), run_id="r", created_at=WHEN, configuration=configuration
        )

    before = with_files(metrics="a", old="b")
    assert find_changed_inputs(before, with_files(metrics="a", old="b")) == []
    assert find_changed_inputs(before, with_files(metrics="c", new="d")) == [
        "the file 'metrics.json' was changed",
        "the file 'new.json' was not used before",
        "the file 'old.json' is no longer used",
    ]
    gone = Configuration(file="promptiter.yaml", files={"gone": str(tmp_path / "gone")})
    with pytest.raises(SetupError, match=r"gone' cannot be read: No such file or directory"):
        build_header(
            desk.engine(), desk.engine().check(desk.request()), run_id="r", created_at=WHEN, configuration=gone
        )


def test_versions_may_change() -> None:
    now = header()
    then = now.model_copy(update={"versions": now.versions.model_copy(update={"litellm": "1.0"})})
    assert find_changed_inputs(then, now) == []


def test_one_set_is_compared_once_and_a_scorer_by_its_name() -> None:
    def one(count: int) -> RunHeader:
        return header(train=None, validation=None, cases=desk.eval_set("cases", count))

    assert find_changed_inputs(one(2), one(3)) == ["cases: case 'cases-2' is new"]
    assert find_changed_inputs(one(2), one(2)) == []
    with_scorers = [header(train=None, validation=None, scorer=each) for each in (len, repr)]
    assert find_changed_inputs(*with_scorers) == ["scorer was builtins:len and is now builtins:repr"]
