"""Trackers with their real libraries and local stores: one run with all of them, killed and resumed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.observers.jsonl import JsonlObserver
from promptiter.observers.mlflow import MlflowObserver
from promptiter.observers.opentelemetry import OpenTelemetryObserver
from promptiter.observers.points import Point, PointReader
from promptiter.runs.event_file import EventFile
from tests.marks import take_some
from tests.observers import stores
from tests.worlds.results import drop_measured
from tests.worlds.starter import SmallShop

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]

COURSE = ("best", "round", "spent", "train")
"""The groups of figures with a value for each round."""

ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@dataclass(frozen=True)
class TrackedRun:
    """A run that was killed and resumed, with every tracker. `points` are those of its journal."""

    folder: Path
    printed: dict[str, Any]
    points: list[Point]
    collector: stores.Collector

    @property
    def figures(self) -> dict[tuple[str, int], float]:
        return {(name, point.round): value for point in self.points for name, value in point.figures.items()}

    @property
    def end(self) -> Point:
        return self.points[-1]

    @property
    def report(self) -> str:
        return str(self.folder / "report.html")


def run_process(
    folder: Path, trackers: dict[str, dict[str, object]], *options: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.observers.tracked_shop", str(folder), orjson.dumps(trackers).decode()]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=ENVIRON)


def read_result(runs: Path) -> tuple[object, bytes]:
    """The result without `measured`, and the accepted profile."""
    [run] = runs.glob("[!.]*")
    return drop_measured(orjson.loads((run / "result.json").read_bytes())), (run / "profiles/best.json").read_bytes()


@pytest.fixture(scope="session")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untracked")
    SmallShop().run(folder)
    return folder


@pytest.fixture(scope="session")
def tracked(untracked: Path, mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackedRun]:
    folder = tmp_path_factory.mktemp("tracked")
    shutil.copy(mlflow_template, folder)
    [path] = untracked.glob("*/journal.jsonl")
    [end_of_round] = [event.seq for event in EventFile(path).read() if event.type == "round_completed"]
    with stores.Collector() as collector:
        trackers: dict[str, dict[str, object]] = {
            "mlflow": {"tracking_uri": f"sqlite:///{folder}/mlflow.db", "timeout_s": 120},
            "wandb": {},
            "tensorboard": {},
            "opentelemetry": {"endpoint": collector.url},
            "jsonl": {"path": "progress.jsonl"},
        }
        killed = run_process(folder, trackers, "--kill-at", str(end_of_round + 2))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert collector.spans, "something was sent before the kill"
        resumed = run_process(folder, trackers)
        assert resumed.returncode == 0, resumed.stderr
        [run] = (folder / "runs").glob("[!.]*")
        reader = PointReader()
        points = [point for event in EventFile(run / "journal.jsonl").read() if (point := reader.read(event))]
        yield TrackedRun(run, orjson.loads(resumed.stdout), points, collector)


def test_a_run_with_all_trackers_has_the_result_of_a_run_without(tracked: TrackedRun, untracked: Path) -> None:
    assert read_result(tracked.folder.parent) == read_result(untracked)
    assert tracked.printed["warnings"] == []


def test_no_tracker_leaves_the_machine_by_default(tracked: TrackedRun) -> None:
    outside = [each for each in tracked.printed["connections"] if "127.0.0.1" not in each and not each.startswith("/")]
    assert outside == []


def test_figures_have_one_value_per_round(tracked: TrackedRun) -> None:
    found = Counter((name, point.round) for point in tracked.points for name in point.figures)
    assert set(found.values()) == {1}
    assert {name for name, _ in found} >= {
        "best/objective",
        "round/candidate",
        "round/accepted",
        "spent/calls",
        "result/best",
    }
    assert tracked.figures["best/objective", 0] < tracked.figures["best/objective", 1]


@pytest.fixture(scope="session")
def mlflow_client(tracked: TrackedRun) -> Any:
    from mlflow import MlflowClient

    address = f"sqlite:///{tracked.folder.parents[1]}/mlflow.db"
    return MlflowClient(address, registry_uri=address)


def find_mlflow_runs(client: Any) -> tuple[Any, list[Any]]:
    experiment = client.get_experiment_by_name("promptiter")
    runs = client.search_runs([experiment.experiment_id])
    [parent] = [each for each in runs if "mlflow.parentRunId" not in each.data.tags]
    return parent, [each for each in runs if each is not parent]


def test_mlflow_has_each_point_once(tracked: TrackedRun, mlflow_client: Any) -> None:
    run, _ = find_mlflow_runs(mlflow_client)
    history = [each for name in run.data.metrics for each in mlflow_client.get_metric_history(run.info.run_id, name)]
    assert len(history) == len(tracked.figures)
    assert {(each.key, each.step): each.value for each in history} == tracked.figures


def test_mlflow_has_parameters_verdict_and_report(tracked: TrackedRun, mlflow_client: Any) -> None:
    run, _ = find_mlflow_runs(mlflow_client)
    assert run.info.status == "FINISHED"
    assert run.data.params["seed"] == "0"
    assert len(run.data.params["validation.digest"]) == 64
    assert run.data.params["model.filing"] == "simulated"
    assert run.data.tags["promptiter.verdict"] == tracked.end.facts["verdict"]
    assert run.data.tags["promptiter.report"] == tracked.report
    files = {each.path for each in mlflow_client.list_artifacts(run.info.run_id)}
    assert files >= {"profiles", "surfaces", "run.json", "accepted_profile.json"}


def test_mlflow_has_a_nested_run_per_round(tracked: TrackedRun, mlflow_client: Any) -> None:
    run, rounds = find_mlflow_runs(mlflow_client)
    assert [each.info.run_name for each in rounds] == ["round 1"]
    assert rounds[0].data.tags["mlflow.parentRunId"] == run.info.run_id
    assert rounds[0].data.tags["promptiter.accepted"] == "True"
    assert rounds[0].data.metrics["round/candidate"] == tracked.figures["round/candidate", 1]
    assert rounds[0].info.status == "FINISHED"


def test_mlflow_has_one_version_of_each_accepted_prompt(tracked: TrackedRun, mlflow_client: Any) -> None:
    assert tracked.end.profile is not None
    before, after = tracked.points[0].profile or {}, tracked.end.profile
    for surface_id, text in after.items():
        name = f"support_desk.{surface_id.replace('#', '-')}"
        versions = sorted(mlflow_client.search_prompt_versions(name), key=lambda each: each.version)
        assert [each.template for each in versions] == list(dict.fromkeys([before[surface_id], text]))
        assert mlflow_client.load_prompt(f"prompts:/{name}@adopted").template == text
    experiment = mlflow_client.get_experiment_by_name("promptiter")
    shown = mlflow_client.search_prompts(f"experiment_id = '{experiment.experiment_id}'")
    assert len(shown) == len(after)


def test_wandb_has_each_point_once(tracked: TrackedRun) -> None:
    [file] = (tracked.folder / "wandb").glob("offline-run-*/run-*.wandb")
    records = stores.read_wandb(file)
    rows = [
        {(item.nested_key or [item.key])[0]: orjson.loads(item.value_json) for item in each.history.item}
        for each in records
        if each.HasField("history")
    ]
    found = [((name, row["round"]), value) for row in rows for name, value in row.items() if not name.startswith("_")]
    found = [each for each in found if each[0][0] != "round"]
    expected = {key: value for key, value in tracked.figures.items() if key[0] not in tracked.end.figures}
    assert len(found) == len(expected)
    assert dict(found) == expected


def test_wandb_has_parameters_verdict_profile_and_report(tracked: TrackedRun) -> None:
    [file] = (tracked.folder / "wandb").glob("offline-run-*/run-*.wandb")
    records = stores.read_wandb(file)
    summary = {
        "/".join(item.nested_key or [item.key]): orjson.loads(item.value_json)
        for each in records
        for item in each.summary.update
    }
    config = {item.key or item.nested_key[0] for each in records for item in each.run.config.update}
    assert config >= {"seed", "train.digest", "model.filing"}
    assert summary["verdict"] == tracked.end.facts["verdict"]
    assert summary["report"] == tracked.report
    assert summary["profile"] == tracked.end.profile
    saved = {path.name for path in file.parent.joinpath("files", "profiles").iterdir()}
    assert saved == {"baseline.json", "best.json"}


def test_tensorboard_has_each_point_once(tracked: TrackedRun) -> None:
    found = stores.read_scalars(tracked.folder / "tensorboard")
    course = {key: value for key, value in tracked.figures.items() if key[0].split("/")[0] in COURSE}
    assert len(found) == len(course)
    assert {(name, step): value for name, step, value in found} == pytest.approx(course)


def test_tensorboard_has_prompts_verdict_and_report(tracked: TrackedRun) -> None:
    found = stores.read_texts(tracked.folder / "tensorboard")
    assert tracked.report in found["run"][0]
    assert f"**verdict**: {tracked.end.facts['verdict']}" in found["run_completed"][0]
    assert tracked.end.profile is not None
    for surface_id, text in tracked.end.profile.items():
        assert [line.strip() for line in found[f"prompts/{surface_id}"][-1].splitlines()] == str(text).splitlines()


def test_opentelemetry_has_each_span_once_in_one_trace(tracked: TrackedRun) -> None:
    spans = tracked.collector.spans
    assert set(Counter(span.span_id for span in spans).values()) == {1}
    assert len({span.trace_id for span in spans}) == 1
    ids = {span.span_id for span in spans}
    assert [span.name for span in spans if span.parent_span_id not in ids] == ["run support_desk"]
    kinds = Counter(span.name.split()[0] for span in spans)
    of_points = Counter(point.type for point in tracked.points)
    assert kinds == {
        "run": 1,
        "round": of_points["round_completed"],
        "evaluation": of_points["evaluation_finished"],
        "case": of_points["case"],
    }


def test_opentelemetry_has_scores_decisions_verdict_profile_and_report(tracked: TrackedRun) -> None:
    by_name = {span.name: span for span in tracked.collector.spans}
    [case, *_] = [span for span in tracked.collector.spans if span.name.startswith("case ")]
    score = next(event for event in case.events if event.name == "gen_ai.evaluation.result")
    assert read(score).keys() >= {
        "gen_ai.evaluation.name",
        "gen_ai.evaluation.score.value",
        "gen_ai.evaluation.score.label",
    }
    [decision] = [event for event in by_name["round 1"].events if event.name == "promptiter.decision"]
    assert read(decision)["promptiter.accepted"] is True
    run = read(by_name["run support_desk"])
    assert run["promptiter.verdict"] == tracked.end.facts["verdict"]
    assert run["promptiter.report"] == tracked.report
    assert run["promptiter.result.best"] == tracked.end.figures["result/best"]
    assert tracked.end.profile is not None
    assert run["promptiter.profile.filing#instruction"] == tracked.end.profile["filing#instruction"]


read = stores.read_attributes


def test_jsonl_has_each_line_once(tracked: TrackedRun) -> None:
    lines = [orjson.loads(line) for line in (tracked.folder.parents[1] / "progress.jsonl").read_bytes().splitlines()]
    assert [line["seq"] for line in lines] == [point.seq for point in tracked.points if point.type != "case"]
    assert lines[-1]["verdict"] == tracked.end.facts["verdict"]
    assert lines[-1]["report"] == tracked.report
    assert lines[-1]["profile"] == tracked.end.profile


@pytest.mark.parametrize("state", take_some(["down", "hanging"], ["down"]))
def test_a_tracker_that_does_not_answer_costs_one_warning(
    state: str, untracked: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with stores.hanging_server() as hanging:
        address = hanging if state == "hanging" else stores.find_closed_port()
        trackers = (
            MlflowObserver(tracking_uri=address, timeout_s=6),
            OpenTelemetryObserver(endpoint=f"{address}/v1/traces", timeout_s=3),
        )
        SmallShop().run(tmp_path / "runs", observers=trackers)
    warnings = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert sorted(each.split(":")[0] for each in warnings) == [
        "observer MlflowObserver",
        "observer OpenTelemetryObserver",
    ]
    assert read_result(tmp_path / "runs") == read_result(untracked)


def test_a_stream_that_cannot_be_written_costs_one_warning(
    untracked: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    SmallShop().run(tmp_path / "runs", observers=(JsonlObserver(path=str(tmp_path / "file" / "progress.jsonl")),))
    [warning] = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert "jsonl failed" in warning
    assert read_result(tmp_path / "runs") == read_result(untracked)
