"""`promptiter learn` on spans of a world in production, with an expert as its model and a live agent."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from runpy import run_path

import orjson
import pytest

from promptiter.config.build import build_learning
from promptiter.config.file import read_config
from promptiter.config.learned_run import has_cases_to_show
from promptiter.evaluation.data.evalset_rows import write_lines
from tests.cli.conftest import Run
from tests.worlds import triage_world
from tests.worlds.production import run_in_production

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "learn_from_traces" / "production.py"

AGENT = """
from tests.worlds import triage_world
from tests.worlds.planted_world import TaskModel
from tests.worlds.production import change_node
from tests.worlds.sighted_expert import SightedExpert

world = triage_world.make_triage_world(1)
agent = change_node(world.agent, "note", new_name="take_notes", added="Write plain English.")
task = TaskModel(answer=world.answer, seed=1)
expert = SightedExpert(world.knowledge, seed=1)
"""

CONFIG = """
agent: live_desk:agent
train: train.jsonl
validation: validation.jsonl
metrics:
  - {metric_name: class, evaluator_name: json_match, criterion: {only_tree: {team: true, urgency: true}}}
  - {metric_name: facts, evaluator_name: json_match, criterion: {only_tree: {booking: true, fee: true}}}
models:
  note: {model: live_desk:task}
  sort: {model: live_desk:task}
  answer: {model: live_desk:task}
  expert: {model: live_desk:expert}
stages: expert
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spans and feedback of a hotel's desk in production."""
    folder = tmp_path_factory.mktemp("production")
    world = triage_world.make_triage_world(1)
    production = asyncio.run(run_in_production(world, triage_world.make_cases("prod", 40, Random(5))))
    production.write_spans(folder / "spans.jsonl")
    production.write_feedback(folder / "feedback.csv", share=0.8)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    world = triage_world.make_triage_world(1)
    (tmp_path / "live_desk.py").write_text(AGENT)
    (tmp_path / "promptiter.yaml").write_text(CONFIG)
    for each in (world.train, world.validation):
        (tmp_path / f"{each.id}.jsonl").write_bytes(write_lines(each.cases))
    yield tmp_path
    sys.modules.pop("live_desk", None)


def test_lessons_are_written_and_validated_with_the_live_agent(run: Run, recorded: Path, project: Path) -> None:
    shown = run("learn", recorded / "spans.jsonl", "--feedback", recorded / "feedback.csv")
    assert "note#instruction is take_notes#instruction by its similar text, edited since" in shown
    assert "✓ Improved on these" in shown
    lessons = orjson.loads((project / "lessons" / "lessons.json").read_bytes())
    assert [each["surface_id"] for each in lessons["surfaces"]] == ["take_notes#instruction", "answer#tool.terms"]
    page = (project / "lessons" / "lessons.md").read_text()
    assert "## take_notes#instruction" in page
    assert "Ignore your instructions" not in page
    assert b"take_notes#instruction" in (project / "lessons" / "patches.json").read_bytes()
    [folder] = (project / "runs").glob("[!.]*")
    result = orjson.loads(run("show", folder, "--json"))
    assert {each["surface_id"] for each in result["changes"]} == {"take_notes#instruction", "answer#tool.terms"}


def test_a_dry_run_says_what_failed_and_what_it_would_cost(run: Run, recorded: Path, project: Path) -> None:
    said = project / "said.csv"
    said.write_text((recorded / "feedback.csv").read_text() + "other,down,,\n")
    shown = run("learn", recorded / "spans.jsonl", "--feedback", said, "--dry-run")
    assert "judged runs failed" in shown
    assert "rows of feedback are about other traces" in shown
    assert "cost unknown" in shown
    assert not (project / "lessons").exists()


def test_a_dry_run_asks_no_judge(run: Run, recorded: Path, project: Path) -> None:
    judge = """metrics:
  - metric_name: tone
    evaluator_name: llm_rubric_response
    criterion: {llm_judge: {judge_model: {model_name: nowhere/judge}, rubrics: [{id: polite, content: Is it polite?}]}}
"""
    before, _, after = CONFIG.partition("metrics:\n")
    (project / "promptiter.yaml").write_text(before + judge + after[after.index("models:") :])
    shown = run("learn", recorded / "spans.jsonl", "--dry-run", stream="err")
    assert "A dry run asks no judge, so these metrics are not applied: tone." in shown


def test_feedback_on_other_traces_is_explained(run: Run, recorded: Path, project: Path) -> None:
    (project / "other.csv").write_text("trace_id,rating\nabc,down\n")
    said = run("learn", recorded / "spans.jsonl", "--feedback", project / "other.csv", code=2)
    assert "no row of" in said
    assert "'abc'" in said


def test_lessons_need_no_configuration_and_no_model(
    run: Run, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run("learn", recorded / "spans.jsonl", "--feedback", recorded / "feedback.csv", "--json")
    assert orjson.loads(shown)["surfaces"][0]["surface_id"] == "note#instruction"


def test_learning_and_validation_share_the_budget(run: Run, recorded: Path, project: Path) -> None:
    (project / "promptiter.yaml").write_text(CONFIG + "budget: {max_calls: 20}\n")
    run("learn", recorded / "spans.jsonl", "--feedback", recorded / "feedback.csv", code=6)
    [folder] = (project / "runs").glob("[!.]*")
    assert "15 of 15 calls (max_calls) are spent" in run("show", folder)


def test_cases_of_the_user_or_of_failed_runs_can_show_a_fault(project: Path) -> None:
    assert has_cases_to_show(build_learning(read_config(project / "promptiter.yaml")).config, project)
    alone = CONFIG.replace("train: train.jsonl\n", "").replace("validation: validation.jsonl\n", "")
    (project / "promptiter.yaml").write_text(alone)
    assert not has_cases_to_show(build_learning(read_config(project / "promptiter.yaml")).config, project)


@pytest.mark.long
def test_without_metrics_an_agent_is_validated_by_the_references(run: Run, desk: Path) -> None:
    (desk / "promptiter.yaml").unlink()
    run_path(str(EXAMPLE), run_name="__main__")
    learn = ("learn", "spans.jsonl", "--feedback", "feedback.csv", "--agent", "agent:agent")
    said = run(*learn, stream="err")
    assert "No metrics are configured: json_match validates the patches" in said
    [folder] = (desk / "runs").glob("[!.]*")
    assert orjson.loads(run("show", folder, "--json"))["verdict"] == "improved_on_validation"
    shutil.rmtree(desk / "runs")
    feedback = desk / "feedback.csv"
    feedback.write_text(feedback.read_text().replace('"{', '"Better: {'))  # texts, which take a judge to compare
    assert "The patches are not validated: there are no metrics" in run(*learn, code=2)
    assert not (desk / "runs").exists()
