from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new database of MLflow. To create one takes seconds, to copy it does not."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def mlflow_store(mlflow_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a new database."""
    monkeypatch.chdir(tmp_path)  # MLflow keeps artifacts here
    shutil.copy(mlflow_template, tmp_path)
    return f"sqlite:///{tmp_path}/mlflow.db"
