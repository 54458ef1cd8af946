"""Names and texts that are unusual but legal, in the store of each tracker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from promptiter.observers.mlflow import MlflowObserver
from promptiter.observers.points import Fact, Point
from promptiter.observers.tensorboard import TensorboardObserver
from promptiter.observers.tracker import Tracker
from promptiter.observers.wandb import WandbObserver
from tests.observers import stores

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]

RUN_ID = 'bob\'s "run"'
METRICS = ("a//b", "a/b", "../x", "a:b", "a_b", "ünï", "😀", "/x/", " ", "<b>", "{{x}}", "'\"`", "x" * 400, "x" * 401)
FIGURES = {f"best/metric/{name}": float(number) for number, name in enumerate(METRICS)}
PROFILE = {
    "nöde#instruction": "Grüße, {{name}} 😀",
    "n" * 300 + "#instruction": "Be brief.",
    "long#skill": "x" * 150_000,
}


def build_point(seq: int, kind: str, *, facts: dict[str, Fact], **given: Any) -> Point:
    where: dict[str, Any] = {"run_id": RUN_ID, "round": 0, "phase": "", "at": 1.8e9 + seq, "elapsed_s": seq}
    return Point(seq=seq, type=kind, facts=facts, **where, **given)


START = build_point(0, "run_started", facts={"agent": "Büro 😀's/desk", "targets": "t" * 9000}, profile=PROFILE)
FINISHED = build_point(1, "evaluation_finished", facts={"evaluation": 0}, figures=FIGURES)
END: dict[str, Fact] = {"status": "succeeded", "verdict": "improved", "is_final": True, "changed": "long#skill"}


def store_twice(tracker: Tracker, end: dict[str, Fact] = END) -> None:
    """Store the points as a run does, and again as a resumed one."""
    for _ in range(2):
        run = tracker.open_run(START, None)
        run.write(START)
        run.write(FINISHED)
        run.close(build_point(2, "run_completed", facts=end, profile=PROFILE))


def test_mlflow_keeps_figures_with_unusual_names_apart(mlflow_store: str) -> None:
    store_twice(MlflowObserver(tracking_uri=mlflow_store))
    from mlflow import MlflowClient

    client = MlflowClient(mlflow_store, registry_uri=mlflow_store)
    [run] = client.search_runs([client.get_experiment_by_name("promptiter").experiment_id])
    history = [each for name in run.data.metrics for each in client.get_metric_history(run.info.run_id, name)]
    assert sorted(each.value for each in history) == sorted(FIGURES.values())
    prompts = {
        each.name: [one.version for one in client.search_prompt_versions(each.name)] for each in client.search_prompts()
    }
    assert list(prompts.values()) == [[1], [1]]  # a text of 150,000 characters is too long for MLflow
    assert all(client.load_prompt(f"prompts:/{name}@adopted") for name in prompts)


def test_mlflow_marks_nothing_as_adopted_unless_the_run_adopted_a_change(mlflow_store: str) -> None:
    store_twice(MlflowObserver(tracking_uri=mlflow_store), {**END, "is_final": False})
    store_twice(MlflowObserver(tracking_uri=mlflow_store), {name: END[name] for name in END if name != "changed"})
    from mlflow import MlflowClient

    client = MlflowClient(mlflow_store, registry_uri=mlflow_store)
    assert [
        version.aliases for each in client.search_prompts() for version in client.search_prompt_versions(each.name)
    ] == [[], []]


def test_tensorboard_keeps_figures_with_unusual_names(tmp_path: Path) -> None:
    store_twice(TensorboardObserver(folder=str(tmp_path)))
    assert {name: value for name, _, value in stores.read_scalars(tmp_path / RUN_ID)} == FIGURES


def test_wandb_keeps_figures_with_unusual_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store_twice(WandbObserver(folder=str(tmp_path)))
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows = [each.history.item for each in stores.read_wandb(file) if each.HasField("history")]
    found = Counter((item.nested_key or [item.key])[0] for row in rows for item in row)
    assert {name: found[name] for name in FIGURES} == dict.fromkeys(FIGURES, 1)
    assert capfd.readouterr().err == ""
