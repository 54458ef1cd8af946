"""`promptiter show` and `promptiter trace show RUN`: a run from its folder alone, at any time."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import orjson
import pytest

from promptiter.api import load_run
from promptiter.runs.case_history import read_case
from promptiter.runs.event_file import EventFile
from promptiter.runs.file_journal import FileJournal
from promptiter.runs.lock import RunLock
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of one finished run of the starter, without its project: the agent and the configuration are gone."""
    project = tmp_path_factory.mktemp("project")
    starter = Path(__file__).parents[2] / "promptiter" / "starter"
    shutil.copytree(starter, project, dirs_exist_ok=True)
    before = list(sys.path)
    sys.modules.pop("agent", None)
    run = load_run(project).begin()
    run.run_sync()
    sys.modules.pop("agent", None)
    sys.path[:] = before
    alone = tmp_path_factory.mktemp("alone") / "runs" / run.path.name
    shutil.copytree(run.path, alone)
    yield alone
    shutil.rmtree(project)


def test_a_finished_run_is_shown_without_its_agent_and_configuration(run: Run, finished: Path) -> None:
    lines = run("show", finished).splitlines()
    assert lines[:2] == [
        f"support_desk  {finished.name}",
        "✓ Improved on these 8 cases: mean score 0.500 → 1.000 (same in every repeat)",
    ]
    assert re.fullmatch(r"cases that pass +0/8 +8/8", next(line for line in lines if line.startswith("cases that")))
    assert "What changed: 2 of 6 surfaces" in lines
    assert "  filing#instruction" in lines, "without an effect, which the final test did not measure"
    assert "Unchanged: 4 of 6 surfaces" in lines
    assert not any(line.startswith("  details: ") for line in lines), "these are the details"


def test_a_broken_configuration_does_not_hide_runs(run: Run, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = finished.parent.parent
    monkeypatch.chdir(project)
    (project / "promptiter.yaml").write_text("agent: [\nmax_rounds: many")
    assert run("show", "latest").startswith(f"support_desk  {finished.name}")
    assert run("show", finished.name[-8:], "--rounds").startswith("support_desk")
    assert "improved on validation" in run("runs")
    (project / "promptiter.yaml").unlink()


def test_each_section_can_be_shown_alone(run: Run, finished: Path) -> None:
    diff = run("show", finished, "--diff")
    assert "    - Pass on the order id, the product, the amount, the city and the wish exactly as given." in diff
    assert "why (round 1): 12 of 12 failed cases" in diff
    assert "Blame" not in diff
    rounds = run("show", finished, "--rounds")
    assert re.search(r"    1 +0\.500, 0/12 pass +1\.000, 8/8 pass +accepted filing#instruction, reception", rounds)
    assert re.findall(r" pass (\d: .*?) *\n", rounds) == [
        "1: reception#instruction; failed train cases: 0.500, 0/12 pass",
        "2: filing#instruction; failed train cases: 1.000, 12/12 pass",
    ]
    blame = run("show", finished, "--blame")
    assert "  reception#instruction  12 cases, changed" in blame
    assert "cases: chair, fan, kettle, lamp, mirror, router" in blame
    costs = run("show", finished, "--costs")
    assert re.search(r"  agent: (\d+) calls, \d+ cached, [\d,]+ tokens, \$0\n", costs)
    assert "Compared with the forecast" in costs


def test_a_case_is_shown_with_each_of_its_runs(run: Run, finished: Path) -> None:
    lines = run("show", finished, "--case", "blender").splitlines()
    assert lines[0] == "blender  6 runs"
    assert re.fullmatch(r"  1 +baseline +baseline +0 +0\.500 +fail", lines[3])
    assert re.fullmatch(r"  3 +1 +final test +baseline +2 +0\.500 +fail", lines[5])
    assert re.fullmatch(r"  6 +1 +final test +best +3 +1\.000 +pass", lines[8])
    assert "  purchase_date 0.000: json: '2026-02-18' is missing at $['purchase date']" in lines
    assert lines[-1] == f"traces: promptiter trace show {finished} --case blender"
    found = orjson.loads(run("show", finished, "--case", "blender", "--json"))
    assert [each["phase"] for each in found["runs"][:3]] == ["baseline", "validation", "final_test"]


async def test_the_runs_of_a_case_do_not_depend_on_which_finished_first(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / finished.name
    folder.mkdir()
    shutil.copy(finished / "run.json", folder)
    reordered = FileJournal(folder / "journal.jsonl")
    for kind, group in groupby(EventFile(finished / "journal.jsonl").read(), key=attrgetter("type")):
        events = list(group)
        rows = [event.data for event in events]
        for event, data in zip(events, reversed(rows) if kind == "case" else rows, strict=True):
            await reordered.append(event.model_copy(update={"data": data}))
    reordered.close()
    assert (folder / "journal.jsonl").read_bytes() != (finished / "journal.jsonl").read_bytes()
    assert read_case(folder, "blender") == read_case(finished, "blender")


def test_an_unknown_case_is_named_with_the_nearest(run: Run, finished: Path) -> None:
    assert "has no case 'blendr' (did you mean 'blender'?)" in run("show", finished, "--case", "blendr", code=2)
    assert "cannot be combined with --diff" in run("show", finished, "--case", "blender", "--diff", code=2)


def test_json_has_the_whole_summary(run: Run, finished: Path) -> None:
    found = orjson.loads(run("show", finished, "--json"))
    assert found["verdict"] == "improved_on_validation"
    assert (found["outcome"], found["score"]["before"], found["score"]["after"]) == ("improved_on_validation", 0.5, 1.0)
    assert [each["surface_id"] for each in found["changes"]] == ["filing#instruction", "reception#instruction"]
    assert found["changes"][0]["reasons"][0]["round"] == 1
    assert found["failing"] == []
    assert found["commands"][0]["command"] == f"promptiter show {finished}"


@pytest.mark.parametrize(("events", "headline"), [(12, "Interrupted"), (40, "Interrupted in round 1")])
def test_an_unfinished_run_is_shown_so_far(
    events: int, headline: str, run: Run, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / finished.name
    shutil.copytree(finished, folder)
    journal = folder / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:events]))
    (folder / "result.json").unlink()
    shown = run("show", folder)
    assert f"● {headline}: mean score 0.500" in shown.splitlines()
    assert f"  resume: promptiter resume {folder}" in shown.splitlines()
    assert re.search(r"\$0 \(offline model\), \d+ model calls, \d", shown)
    with RunLock(folder):
        held = run("show", folder)
    assert f"● {headline.replace('Interrupted', 'Running')}: mean score 0.500" in held.splitlines()
    assert "promptiter resume" not in held


def test_a_run_that_has_not_begun_is_reported(run: Run, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / finished.name
    folder.mkdir()
    shutil.copy(finished / "run.json", folder)
    assert "has recorded nothing yet" in run("show", folder, code=2)


def test_the_traces_of_a_case_are_shown_with_its_runs(run: Run, finished: Path) -> None:
    shown = run("trace", "show", finished, "--case", "blender")
    lines = shown.splitlines()
    assert re.fullmatch(r"→ 6 +1 +final test +best +3 +1\.000 +pass", lines[6])
    assert lines[8].startswith("blender~3~")
    assert "critical path: reception → " in shown
    assert '\nfiling     {"order id": ' in shown
    assert "{" not in run("trace", "show", finished, "--case", "blender", "--no-outputs")
    first = orjson.loads(run("trace", "show", finished, "--case", "blender", "--run", "1", "--format", "json"))
    assert first["trace_id"].startswith("blender~0~")


def test_a_missing_trace_is_explained(run: Run, finished: Path, tmp_path: Path) -> None:
    assert f"{finished} is a run; choose a case with --case ID" in run("trace", "show", finished, code=2)
    assert "blender~0~" in run("trace", "show", finished / "traces.jsonl.gz")
    wrong = run("trace", "show", finished, "--case", "blender", "--run", "9", code=2)
    assert "case 'blender' has 6 runs so far" in wrong
    folder = tmp_path / finished.name
    shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("traces.jsonl.gz"))
    assert "has no trace: see `keep_traces`" in run("trace", "show", folder, "--case", "blender", code=2)


def test_two_runs_are_compared(run: Run, finished_run: Path) -> None:
    run("run", "--max-rounds", "0", "--quiet")
    shown = run("show", finished_run, "latest")
    assert re.search(r"^score +0\.500 → 1\.000 +0\.500$", shown, re.MULTILINE)
    assert re.search(r"^cases that pass +8/8 +0/8$", shown, re.MULTILINE)
    assert "max_rounds was 4 and is now 0" in shown
    assert "filing#instruction  changed in the first run only" in shown
    assert "pass at the end of the second run only: none" in shown
    found = orjson.loads(run("show", finished_run, "latest", "--json"))
    assert len(found["only_first_passes"]) == found["common_cases"] == 8
    assert "leave out --diff" in run("show", finished_run, "latest", "--diff", code=2)
