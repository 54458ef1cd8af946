"""Projects whose runs take no time or long, and `promptiter serve` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from tests.config.conftest import AGENT, write_cases, write_config

CONFIG = """
agent: NAME_agent:agent
train: data/train.jsonl
validation: data/validation.jsonl
metrics: metrics.json
models: {simulated: {latency_s: LATENCY}}
max_rounds: 1
final_test: false
evaluation: {repeats: 1}
server: {app: NAME, eval_sets: {more: data/train.jsonl}}
"""


def write_project(folder: Path, *, latency_s: float = 0.0, more: str = "") -> Path:
    """A project whose app is called like its folder. Each call of its model takes this long."""
    (folder / "data").mkdir(parents=True)
    (folder / f"{folder.name}_agent.py").write_text(AGENT)
    (folder / "metrics.json").write_bytes(orjson.dumps({"metrics": [{"metric_name": "exact_match"}]}))
    write_cases(folder / "data" / "train.jsonl", "tea", "milk")
    write_cases(folder / "data" / "validation.jsonl", "salt")
    write_config(folder, CONFIG.replace("LATENCY", str(float(latency_s))).replace("NAME", folder.name) + more)
    return folder


@contextmanager
def serve_projects(*projects: Path, store: str, options: tuple[str, ...] = ()) -> Iterator[str]:
    """A server of these projects; yields its address. What it logs is an error."""
    command = [sys.executable, "-m", "promptiter", "serve", *map(str, projects), "--port", "0", "--store", store]
    log = projects[0].parent / "server.log"
    with (
        log.open("wb") as written,
        subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=written, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield next((word.rstrip(".") for word in line.split() if word.startswith("http://")), log.read_text())
        finally:
            process.kill()  # a run in progress would be waited for
    assert "Traceback" not in log.read_text(), log.read_text()[-5000:]
