"""The workflows of examples/github_actions: the commands that do not need GitHub are run in a git repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLE = Path(__file__).parents[1] / "examples" / "github_actions"
ONLY_ON_GITHUB = ("pip install", "gh pr create")


class Job:
    """A job in a clone of the example, as GitHub runs it: each command in bash, with a summary and outputs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        shutil.copytree(EXAMPLE, self.folder, ignore=shutil.ignore_patterns("runs", "cache", "__pycache__"))
        self.summary, self.output = folder / "summary.md", folder / "output.txt"
        self.environ = {
            **os.environ,
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTEST_PLUGINS": "promptiter.pytest_plugin",
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_RUN_ID": "7",
            "HOME": str(folder),
        }
        self.git("init", "--quiet", "--initial-branch", "main")
        self.git("add", "--all")
        self.git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "--message", "start")
        self.start = self.git("rev-parse", "HEAD").strip()

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self.folder, env=self.environ, check=True, capture_output=True, text=True
        ).stdout

    def run(self, name: str) -> str:
        """Run the command of a step; return what it printed."""
        self.summary.write_text("")
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", name],
            cwd=self.folder,
            env=self.environ | {"GITHUB_SHA": self.start},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{name}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def read_workflow(name: str) -> dict[str, Any]:
    document = yaml.safe_load((EXAMPLE / "workflows" / name).read_text())
    assert isinstance(document, dict)
    return document


def list_steps(name: str) -> list[dict[str, Any]]:
    [steps] = [each["steps"] for each in read_workflow(name)["jobs"].values()]
    return [step for step in steps if "run" in step and not any(word in step["run"] for word in ONLY_ON_GITHUB)]


def test_the_workflows_start_on_pull_requests_and_at_night() -> None:
    assert read_workflow("pull_request.yml")["on"] == "pull_request"
    assert set(read_workflow("nightly.yml")["on"]) == {"schedule", "workflow_dispatch"}
    paths = {
        step["with"]["path"]
        for name in ("pull_request.yml", "nightly.yml")
        for each in read_workflow(name)["jobs"].values()
        for step in each["steps"]
        if step.get("uses", "").startswith("actions/cache")
    }
    assert paths == {"cache\nruns\n"}, "one cache for both"


@pytest.mark.long
def test_the_nightly_run_ends_in_one_commit_with_the_new_prompts(job: Job) -> None:
    search, gate, commit = list_steps("nightly.yml")
    job.run(search["run"])
    job.run(gate["run"])
    assert job.output.read_text() == "open=true\n"
    assert commit["if"] == f"steps.{gate['id']}.outputs.open == 'true'"
    assert "min_gain" in job.summary.read_text()
    job.run(commit["run"])
    assert job.git("diff", "--name-only", job.start, "HEAD").split() == ["agent.py"]
    assert "the order id and the city" in (job.folder / "agent.py").read_text()
    tests, gate = list_steps("pull_request.yml")
    assert "8 passed" in job.run(tests["run"]), "the pull request of the nightly branch"
    job.run(gate["run"])
    assert "max_age_days" in job.summary.read_text()
    assert job.git("status", "--short") == ""


@pytest.mark.long
def test_a_night_without_an_improvement_is_neither_a_failure_nor_a_commit(job: Job) -> None:
    agent = job.folder / "agent.py"
    agent.write_text(agent.read_text().replace("the order id", "the order id and the city"))
    search, gate, _ = list_steps("nightly.yml")
    job.run(search["run"])
    job.run(gate["run"])
    assert "verdict" in job.summary.read_text()
    assert not job.output.exists()


@pytest.mark.long
def test_the_cases_are_tests_of_a_pull_request(job: Job) -> None:
    tests, _ = list_steps("pull_request.yml")
    assert "pass rate 0.500" in job.run(tests["run"])
    assert (job.folder / "evals.xml").exists()
