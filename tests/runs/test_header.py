from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.agents.graph import Edge, GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.llm.gateway import Gateway
from promptiter.llm.redaction import Redactor
from promptiter.llm.secret import Secret
from promptiter.policies.acceptance import MinGain, NoRegression
from promptiter.policies.stop_limits import MaxUsd
from promptiter.policies.stopping import Patience
from promptiter.profile import Profile
from promptiter.runs.header import (
    Configuration,
    RunHeader,
    differences,
    header_of,
    read_header,
    write_header,
)
from tests.worlds import desk

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CONFIG: dict[str, Any] = {
    "agent": "desk:agent",
    "max_rounds": 4,
    "stop": {"minutes": 30},
    "evaluation": {"concurrency": 4, "repeats": 2},
    "models": {"gpt-4.1": {"api_base": "https://example.org", "api_key": "${KEY}", "timeout_s": 3}},
}


def header(engine: Engine | None = None, *, config: dict[str, Any] | None = None, **changes: Any) -> RunHeader:
    chosen = engine or desk.engine(desk.DRAFT)
    configuration = Configuration(file="promptiter.yaml", document=CONFIG if config is None else config)
    return header_of(chosen, desk.request(**changes), run_id="r", created_at=WHEN, configuration=configuration)


def agent(*instructions: str, names: tuple[str, ...] = ("draft", "polish")) -> Engine:
    nodes = [ModelNode(name=n, instruction=i, model="scripted") for n, i in zip(names, instructions, strict=True)]
    graph = GraphAgent(name="desk", nodes=tuple(nodes), edges=(Edge(*names),))
    return Engine(graph, desk.evaluator(), search=desk.Tries())


def test_a_header_comes_back_from_its_file(tmp_path: Path) -> None:
    written = header(acceptance=MinGain(0.01) & NoRegression(), stop=Patience(2) | MaxUsd(3.0))
    assert write_header(tmp_path, written) == tmp_path / "run.json"
    assert read_header(tmp_path) == written
    assert differences(read_header(tmp_path), written) == []
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_header_says_what_was_asked_for() -> None:
    snapshot, found = desk.agent().describe(), header(max_rounds=7, seed=5, acceptance=MinGain(0.01) & NoRegression())
    assert list(found.model_dump()) == [
        *("schema_version", "run_id", "created_at", "versions", "request", "configuration"),
        *("structure", "models", "train", "validation", "test"),
    ]
    assert found.created_at == "2026-01-02T03:04:05+00:00"
    assert found.structure.structure_id == snapshot.structure_id
    assert found.structure.baseline_id == snapshot.baseline_id
    assert found.train.content_digest == desk.eval_set("train", 3).content_digest
    assert list(found.train.cases) == ["train-0", "train-1", "train-2"]
    assert found.request["seed"] == 5
    assert found.request["acceptance"] == "MinGain(0.01) & NoRegression()"
    assert found.request["targets"] == ["draft#instruction", "polish#instruction"]
    assert found.versions.python.startswith("3.")
    assert found.versions.litellm
    assert found.configuration is not None
    assert found.configuration.document == CONFIG


def test_a_request_that_cannot_be_served_has_no_header() -> None:
    with pytest.raises(RequestError, match="max_rounds is -1"):
        header(max_rounds=-1)


def test_a_header_is_written_once(tmp_path: Path) -> None:
    write_header(tmp_path, header())
    raw = (tmp_path / "run.json").read_bytes()
    with pytest.raises(SetupError, match=r"run.json' is there already, .* never changed"):
        write_header(tmp_path, header(seed=3))
    assert (tmp_path / "run.json").read_bytes() == raw


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (None, "is no run: it has no run.json"),
        (b'{"schema_version": 2', "cannot be read: .*; bring it back from a copy"),
        (b'{"schema_version": 1}', "has schema_version 1, and this release reads 2; use the promptiter"),
        (b"[]", "has schema_version None, and this release reads 2"),
        (b'{"schema_version": 2, "run_id": "r"}', "is no header of a run: created_at: Field required"),
    ],
)
def test_a_header_that_cannot_be_used_is_told(tmp_path: Path, raw: bytes | None, said: str) -> None:
    if raw is not None:
        (tmp_path / "run.json").write_bytes(raw)
    with pytest.raises(SetupError, match=said):
        read_header(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, ["seed was 0 and is now 1"]),
        ({"max_rounds": 6}, ["max_rounds was 4 and is now 6"]),
        ({"acceptance": MinGain(0.5)}, ["acceptance was AnyGain() and is now MinGain(0.5)"]),
        ({"stop": Patience(1)}, ["stop is new: Patience(1)"]),
        ({"objective": "pass_rate"}, ["objective was mean_score and is now pass_rate"]),
        ({"judge": "gpt"}, ["judge is new: gpt"]),
        ({"protected": frozenset({"validation-1"})}, ['protected was [] and is now ["validation-1"]']),
        (
            {"targets": ["draft#instruction"]},
            ['targets was ["draft#instruction","polish#instruction"] and is now ["draft#instruction"]'],
        ),
    ],
)
def test_changed_settings_are_told_in_words(changes: dict[str, Any], said: list[str]) -> None:
    assert differences(header(), header(**changes)) == said


def test_another_initial_profile_is_told() -> None:
    profile = Profile.of(desk.agent().describe(), desk.DRAFT)
    [said] = differences(header(), header(initial_profile=profile))
    assert said.startswith("initial_profile is new: ")


ADDED = ("train-3", "train-4", "train-5", "train-6", "train-7")


def shuffled(eval_set: EvalSet) -> EvalSet:
    return replace(eval_set, cases=tuple(reversed(eval_set.cases)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: replace(s, cases=s.cases[1:]), "train: case 'train-0' is gone"),
        (lambda _: desk.eval_set("train", 5), "train: case 'train-3' is new, case 'train-4' is new"),
        (
            lambda s: replace(
                s, cases=(replace(s.cases[1], id="train-0"), replace(s.cases[0], id="train-1"), s.cases[2])
            ),
            "train: case 'train-0' was changed, case 'train-1' was changed",
        ),
        (shuffled, "train: the cases stand in another order"),
        (lambda s: replace(s, id="more"), "train: the eval set was 'train' and is now 'more'"),
        (
            lambda _: desk.eval_set("train", 12),
            f"train: {', '.join(f'case {name!r} is new' for name in ADDED)}, and 4 more",
        ),
    ],
)
def test_changed_cases_are_told_by_name(change: Callable[[EvalSet], EvalSet], said: str) -> None:
    train = desk.eval_set("train", 3)
    assert differences(header(train=train), header(train=change(train))) == [said]


def test_both_eval_sets_are_looked_at() -> None:
    said = differences(header(), header(validation=desk.eval_set("validation", 3)))
    assert said == ["validation: case 'validation-2' is new"]


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (agent("Draft well.", "Polish."), ["the agent's own value of surface 'draft#instruction' was edited"]),
        (
            agent("Draft.", "Polish.", names=("draft", "check")),
            [
                "the agent has lost surfaces: 'polish#instruction', 'polish#model', 'polish#examples'",
                "the agent has new surfaces: 'check#instruction', 'check#model', 'check#examples'",
            ],
        ),
        (
            agent("Polish.", "Draft.", names=("polish", "draft")),
            ["the agent has other nodes or edges, or surfaces of another type"],
        ),
    ],
)
def test_a_changed_agent_is_told(engine: Engine, said: list[str]) -> None:
    before = header(agent("Draft.", "Polish."), targets=["draft#instruction"])
    assert differences(before, header(engine, targets=["draft#instruction"])) == said


def test_a_changed_metric_is_told() -> None:
    other = desk.engine(desk.DRAFT)
    other.evaluator.weights["careful"] = 2.0
    assert differences(header(), header(other)) == ["weights.careful is new: 2.0"]


def test_changed_keys_of_the_configuration_are_told_by_their_path() -> None:
    config = {**CONFIG, "stop": {"minutes": 60}, "review": True, "teacher": "gpt", "models": {}}
    assert differences(header(), header(config=config)) == [
        "stop.minutes was 30 and is now 60",
        "models.gpt-4.1.api_base was https://example.org and is gone",
        "teacher is new: gpt",
    ]


def test_one_change_is_told_once() -> None:
    assert differences(header(), header(config={**CONFIG, "max_rounds": 6}, max_rounds=6)) == [
        "max_rounds was 4 and is now 6"
    ]


def test_how_a_run_is_done_may_change() -> None:
    model = {"api_base": "https://example.org", "api_key": "${OTHER}", "timeout_s": 60, "requests_per_minute": 5}
    config = {
        **CONFIG,
        "quiet": True,
        "runs": "elsewhere",
        "evaluation": {"concurrency": 1, "repeats": 2},
        "models": {"gpt-4.1": model},
    }
    assert differences(header(), header(config=config)) == []
    assert (
        differences(header(config={"agent": "a"}), header(config={"agent": "a", "evaluation": {"concurrency": 1}}))
        == []
    )


def test_files_count_by_what_is_in_them(tmp_path: Path) -> None:
    def with_files(**texts: str) -> RunHeader:
        paths = {}
        for name, text in texts.items():
            paths[f"{name}.json"] = tmp_path / f"{name}.json"
            paths[f"{name}.json"].write_text(text)
        configuration = Configuration(file="promptiter.yaml", files={name: str(path) for name, path in paths.items()})
        return header_of(desk.engine(), desk.request(), run_id="r", created_at=WHEN, configuration=configuration)

    before = with_files(metrics="a", old="b")
    assert differences(before, with_files(metrics="a", old="b")) == []
    assert differences(before, with_files(metrics="c", new="d")) == [
        "the file 'metrics.json' was changed",
        "the file 'new.json' was not used before",
        "the file 'old.json' is not used any more",
    ]
    gone = Configuration(file="promptiter.yaml", files={"gone": str(tmp_path / "gone")})
    with pytest.raises(SetupError, match=r"gone' cannot be read: No such file or directory"):
        header_of(desk.engine(), desk.request(), run_id="r", created_at=WHEN, configuration=gone)


def test_other_versions_are_no_other_run() -> None:
    now = header()
    then = now.model_copy(update={"versions": now.versions.model_copy(update={"litellm": "1.0"})})
    assert differences(then, now) == []


def test_no_secret_stands_in_a_header(tmp_path: Path) -> None:
    canary = "canary-4711-bird"
    gateway = Gateway(models={"scripted": desk.model()}, redactor=Redactor([canary]))
    config = {
        "teacher": canary,
        "models": {
            "literal": {"api_key": "plain-old-words", "headers": {"X-Any": "of the header", "X-Var": "${TOKEN}"}},
            "by_name": {"api_key": "${OPENAI_API_KEY}", "headers": {"Authorization": "Bearer ${A}${B}"}},
            "half": {"api_key": "half-literal-${A}", "api_base": "https://me:pass4711@example.org"},
            "read": {"api_key": Secret("revealed", source="${KEY}"), "headers": {"X": Secret("revealed")}},
        },
        "metrics": [{"name": "judge", "options": [{"password": "open sesame"}], "threshold": 0.5}],
        "more": [{"extra_headers": {"X": ["of the header"]}, "secret": {"pin": 471100}, "max_tokens": 7}],
    }
    found = header(desk.engine(desk.DRAFT, gateway=gateway), config=config, judge=canary)
    raw = write_header(tmp_path, found).read_bytes()
    for secret in (canary, "plain-old", "of the header", "half-literal", "pass4711", "revealed", "sesame", "471100"):
        assert secret.encode() not in raw
    models = orjson.loads(raw)["configuration"]["document"]["models"]
    assert models["literal"] == {"api_key": "***", "headers": {"X-Any": "***", "X-Var": "${TOKEN}"}}
    assert models["by_name"] == {"api_key": "${OPENAI_API_KEY}", "headers": {"Authorization": "Bearer ${A}${B}"}}
    assert models["half"] == {"api_key": "***", "api_base": "https://me:***@example.org"}
    assert models["read"] == {"api_key": "${KEY}", "headers": {"X": "***"}}
    assert found.configuration is not None
    document = found.configuration.document
    assert document["more"] == [{"extra_headers": {"X": ["***"]}, "secret": {"pin": "***"}, "max_tokens": 7}]
    assert document["metrics"] == [{"name": "judge", "options": [{"password": "***"}], "threshold": 0.5}]


def test_a_file_that_cannot_be_read_back_is_never_half_there(tmp_path: Path) -> None:
    write_header(tmp_path, header())
    assert (tmp_path / "run.json").read_bytes().endswith(b"}\n")
    assert orjson.loads((tmp_path / "run.json").read_bytes())["schema_version"] == 2
