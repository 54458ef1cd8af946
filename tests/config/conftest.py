"""A project with an agent, two eval sets and metrics, and functions that load it with other settings."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import orjson
import pytest

from promptiter.api import load_run
from promptiter.config.configured_run import ConfiguredRun
from promptiter.errors import RequestError

AGENT = """
from promptiter import GraphAgent, ModelNode

agent = GraphAgent(name="echo", nodes=(ModelNode(name="echo", instruction="Repeat the question."),))
"""
METRICS = {"metrics": [{"metric_name": "exact_match"}], "num_runs": 2}
FILE = """
agent: config_agent:agent
train: data/train.jsonl
validation: [data/validation.jsonl]
metrics: metrics.json
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that FILE names; what is imported from there is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "config_agent", raising=False)
    (tmp_path / "config_agent.py").write_text(AGENT)
    (tmp_path / "metrics.json").write_bytes(orjson.dumps(METRICS))
    (tmp_path / "data").mkdir()
    write_cases(tmp_path / "data" / "train.jsonl", "tea", "milk", "bread")
    write_cases(tmp_path / "data" / "validation.jsonl", "salt", "honey")
    return tmp_path


def write_cases(path: Path, *words: str) -> None:
    rows = ({"id": word, "input": f"Where is the {word}?", "expected": word} for word in words)
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def write_config(folder: Path, text: str) -> Path:
    path = folder / "promptiter.yaml"
    path.write_text(dedent(text))
    return path


def load(folder: Path, more: str = "", **environ: str) -> ConfiguredRun:
    return load_run(write_config(folder, FILE + dedent(more)), environ=environ)


def problems(folder: Path, text: str, **environ: str) -> list[str]:
    """What is wrong with a file, without the path in front."""
    path = write_config(folder, text)
    with pytest.raises(RequestError) as refused:
        load_run(path, environ=environ)
    return [problem.removeprefix(f"{path}: ") for problem in refused.value.problems]
