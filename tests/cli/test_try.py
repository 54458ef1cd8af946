from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import yaml

from promptiter.api import load_run
from promptiter.cli.watch import WatchedFiles, describe_change
from promptiter.runs.case_use_file import CaseUseFile
from tests.cli.conftest import Run
from traces.model import Json

FILING = "order id, product, amount, city and wish"
FULL_FILING = "order id, product, purchase date, amount, city and wish"
RECEPTION = "Pass on the order id, the product, the amount"
FULL_RECEPTION = "Pass on the order id, the product, the purchase date, the amount"
LEAD = "Never drop anything that your colleagues noted."


def edit(desk: Path, *replacements: tuple[str, str]) -> None:
    """Edit the texts of the agent, and forget the module, as a new process would."""
    file = desk / "agent.py"
    text = file.read_text()
    for before, after in replacements:
        text = text.replace('"\n            "', "")  # texts are broken into several lines
        assert before in text
        text = text.replace(before, after)
    file.write_text(text)
    sys.modules.pop("agent", None)


def try_again(run: Run, *arguments: str | Path, code: int = 0) -> dict[str, Json]:
    sys.modules.pop("agent", None)
    found: dict[str, Json] = orjson.loads(run("try", *arguments, "--json", code=code, stream="out"))
    assert found["exit_code"] == code
    return found


BOT = """
from promptiter.agents import agent, surface

@agent(instruction="Answer.")
def bot(question):
    if "?" in question:
        surface("instruction")
    return "bad"
"""
"""An agent that asks no model through promptiter, and reads its text if the question is one."""


@pytest.fixture
def bot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with the bot, in the current folder. Its cases are questions."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(BOT)
    write_cases(tmp_path, mark="?")
    keys = {"agent": "agent:bot", "train": "train.jsonl", "validation": "validation.jsonl"}
    (tmp_path / "promptiter.yaml").write_text(yaml.safe_dump({**keys, "metrics": [{"metric_name": "contains"}]}))
    sys.modules.pop("agent", None)
    yield tmp_path
    sys.modules.pop("agent", None)


def write_cases(folder: Path, *, mark: str) -> None:
    for name in ("train", "validation"):
        rows = [{"input": f"{name} {number}{mark}", "expected": "good"} for number in range(6)]
        (folder / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))


def set_keys(project: Path, **keys: Json) -> None:
    file = project / "promptiter.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | keys))


@pytest.mark.slow
def test_an_edit_in_the_file_is_compared_with_what_was_recorded(run: Run, desk: Path) -> None:
    shown = run("try")
    assert shown.startswith("Recorded the baseline: 16 runs of 8 cases, mean score 0.500")
    assert "2 repeats: every case scored the same in them" in shown
    edit(desk, (FILING, FULL_FILING), (RECEPTION, FULL_RECEPTION))
    shown = run("try")
    assert "filing#instruction" in shown
    assert "reception#instruction" in shown
    assert "✓ Improved on these 8 cases: mean score 0.500 → 1.000; gain +0.500" in shown
    assert "8 of 8 cases read the 2 edited texts" in shown
    assert "other cases were not tested" in shown
    assert "Better: 8 cases" in shown
    assert "96 of 192 calls were paid; recorded answers saved 96 calls" in shown
    assert "extended the recording" not in shown
    assert "in repeat 1: purchase_date 0 → 1" in shown


@pytest.mark.slow
def test_a_recording_says_beforehand_how_many_repeats_it_makes_and_why(run: Run, desk: Path) -> None:
    set_keys(desk, models={"simulated": {"compliance": 0.9}})
    announced = run("try", stream="err")
    assert "recording the baseline: 2 repeats of 8 cases, or 6 if scores vary between repeats" in announced
    assert "scores vary between repeats: recording 4 more repeats of each case, about 192 calls" in announced
    shown = run("try", "--record")
    assert "Recorded the baseline: 48 runs of 8 cases" in shown
    assert "6 repeats, because scores vary between repeats" in shown


@pytest.mark.slow
def test_calls_that_extend_the_recording_are_named(run: Run, desk: Path) -> None:
    run("try", "-q")
    set_keys(desk, final_test={"repeats": 3})
    shown = run("try", "--set", "filing#instruction=Say hello.", code=1, stream="out")
    assert "72 of 288 calls were paid" in shown  # 8 cases, 3 repeats
    assert "48 calls extended the recording; later edits do not pay them" in shown  # 8 cases, 1 repeat, 6 steps


@pytest.mark.slow
def test_a_recording_that_was_stopped_is_completed_by_the_next_call(run: Run, desk: Path) -> None:
    set_keys(desk, budget={"max_calls": 40})
    shown = run("try", code=6, stream="out")
    assert "the budget ended (max_calls); the next `promptiter try` makes the other runs" in shown
    set_keys(desk, budget={"max_calls": 1_000})
    found = try_again(run)
    assert (found["answer"], found["runs"]) == ("recorded", 16)
    assert 56 <= found["measured"]["spent"]["calls"] < 96  # what was recorded before is not paid again
    assert "error: nothing has changed since the baseline was recorded on 20" in run("try", code=2)


@pytest.mark.slow
def test_an_edit_of_an_agent_without_recorded_answers_counts_each_time(run: Run, bot: Path) -> None:
    edited = ("--set", "bot#instruction=Answer well.", "--json")
    found = [run("try", *edited, code=4, stream="out") for _ in range(3)]
    assert [(each["edits_tried"], each["trials"]) for each in map(orjson.loads, found)] == [(1, 1), (1, 2), (1, 3)]
    assert "1 edit in 3 trials with new answers was tried against this recording" in found[-1]


def test_within_noise_says_what_could_not_have_been_seen(run: Run, bot: Path) -> None:
    found = try_again(run, "--set", "bot#instruction=Answer well.", code=4)
    shown = "; ".join(found["evidence"])
    assert re.search(r"underpowered: .* would probably have been shown; 0\.1 needs about \d+ cases", shown)
    assert "a loss would probably not have been shown: the baseline has 0.000 and little or nothing to lose" in shown


def test_cases_that_cannot_be_scored_are_named_with_the_reason(run: Run, bot: Path) -> None:
    (bot / "agent.py").write_text(BOT.replace('"bad"', "'{}'"))
    set_keys(bot, metrics=[{"metric_name": "json_match"}], evaluation={"max_errored_fraction": 0.9})
    rows = [{"id": f"c{number}", "input": "Why?", "expected": '{"a": 1}' if number else "good"} for number in range(6)]
    (bot / "validation.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    found = try_again(run, "--set", "bot#instruction=Answer well.", code=4)
    assert any(re.match(r"not scored under the baseline: c0: .*the reference", line) for line in found["evidence"]), (
        found["evidence"]
    )


def test_an_edit_that_no_case_reads_makes_no_claim_about_power(run: Run, bot: Path) -> None:
    write_cases(bot, mark=".")
    shown = run("try", "--set", "bot#instruction=Answer well.", code=3, stream="out")
    assert "no case read the edited text, so these cases cannot show what the edit does" in shown
    assert "would probably have been shown" not in shown


def test_a_renamed_surface_is_named_and_asks_for_a_new_recording(run: Run, bot: Path) -> None:
    run("try", "-q")
    (bot / "agent.py").write_text(BOT.replace("def bot", "def helper").replace("Answer.", "Answer well."))
    set_keys(bot, agent="agent:helper")
    sys.modules.pop("agent", None)
    shown = run("try", code=2)
    assert "surfaces were added or removed since the baseline was recorded (bot#instruction, helper#inst" in shown
    assert "pass --record" in shown


@pytest.mark.slow
def test_an_edit_of_the_last_step_pays_only_that_step(run: Run, desk: Path) -> None:
    run("try", "-q")
    found = try_again(run, "--set", "filing#instruction=Say hello.", code=1)
    assert found["answer"] == "worse"
    assert found["measured"]["spent"]["calls"] == 16  # 8 cases, 2 repeats, 1 of 6 steps
    assert found["measured"]["saved"]["calls"] == 16 * 11


@pytest.mark.slow
def test_edits_are_counted_once_and_a_repeated_one_is_free(run: Run, desk: Path) -> None:
    new = desk / "new.md"
    new.write_text(f"You lead a shop's support desk. {LEAD} Do not change the values. Be friendly.\n")
    first = try_again(run, "--set", f"lead#instruction=@{new}", code=3)
    assert (first["answer"], first["edits_tried"], first["gain"]) == ("within_noise", 1, 0.0)
    assert first["edits"][0]["after"].endswith("friendly.")  # without the line break of the file
    again = try_again(run, "--set", f"lead#instruction=@{new}", code=3)
    assert (again["edits_tried"], again["measured"]["spent"]["calls"]) == (1, 0)
    other = try_again(run, "--set", "lead#instruction=Say hello.", code=1)
    assert other["edits_tried"] == 2
    assert "2 edits were tried against this recording" in " ".join(other["evidence"])
    assert len(list((desk / "runs" / "try" / "profiles").iterdir())) == 2


@pytest.mark.slow
def test_record_makes_the_current_texts_the_baseline_with_new_runs(run: Run, desk: Path) -> None:
    run("try", "-q")
    edit(desk, (FILING, FULL_FILING), (RECEPTION, FULL_RECEPTION))
    recorded = try_again(run, "--record")
    assert (recorded["answer"], recorded["before"]) == ("recorded", 1.0)
    assert recorded["measured"]["spent"]["calls"] == 96
    worse = try_again(run, "--set", f"filing#instruction=Reply with the keys {FILING}.", code=1)
    assert (worse["answer"], worse["before"], worse["edits_tried"]) == ("worse", 1.0, 1)


@pytest.mark.slow
def test_an_editor_opens_with_the_current_text(run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = desk / "edit.py"
    script.write_text(
        "import sys, pathlib\nfile = pathlib.Path(sys.argv[1])\nassert 'Never drop' in file.read_text()\n"
        "file.write_text('Say hello.\\n')\n"
    )
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    found = try_again(run, "--edit", "lead#instruction", code=1)
    assert [(each["surface_id"], each["after"]) for each in found["edits"]] == [("lead#instruction", "Say hello.")]
    monkeypatch.delenv("EDITOR")
    assert "--edit needs an editor; set $VISUAL or $EDITOR" in run("try", "--edit", "lead#instruction", code=2)


@pytest.mark.slow
def test_mistakes_are_explained_and_cost_nothing(run: Run, desk: Path) -> None:
    assert "did you mean 'filing#instruction'" in run("try", "--set", "filling#instruction=x", code=2)
    assert "write SURFACE=VALUE, or SURFACE=@FILE" in run("try", "--set", "filing#instruction", code=2)
    assert "cannot be read" in run("try", "--set", "filing#instruction=@missing.md", code=2)
    assert "leave --edit out" in run("try", "--watch", "--edit", "filing#instruction", code=2)
    assert not (desk / "runs" / "try" / "baseline.json").exists()
    run("try", "-q")
    assert "error: nothing has changed since the baseline was recorded" in run("try", code=2)
    (desk / "runs" / "try" / "baseline.json").write_text("{")
    assert "is damaged or of another version; delete it to record again" in run("try", code=2)


@pytest.mark.slow
def test_the_budget_of_the_project_applies(run: Run, desk: Path) -> None:
    set_keys(desk, budget={"max_calls": 150})
    found = try_again(run, "--set", "reception#instruction=Say hello.", code=6)
    assert (found["answer"], found["stop_reason"]) == ("undecided", "max_calls")
    assert found["measured"]["spent"]["calls"] <= 150
    set_keys(desk, budget={"max_calls": 1})
    shown = run("try", "--set", "lead#instruction=Say hello.", code=6, stream="out")
    assert "· Undecided: stopped after 0 pairs of runs" in shown
    assert not any(text in shown for text in ("first edit", "0 cases", "profile:"))
    set_keys(desk, budget={"max_calls": 150})
    resumed = try_again(run, "--set", "reception#instruction=Say hello.", code=1)  # the rest fits into a second budget
    assert resumed["answer"] == "worse"


@pytest.mark.slow
def test_a_later_run_knows_that_the_cases_are_not_new(run: Run, desk: Path) -> None:
    run("try", "-q")
    assert not CaseUseFile(desk / "runs").read()  # a recording shows nothing about an edit
    known = "results on these cases are known now: a later run cannot take them for new ones"
    assert known in run("try", "--set", "lead#instruction=Say hello.", code=1, stream="out")
    assert known not in run("try", "--set", "lead#instruction=Say nothing.", code=1, stream="out")
    [use] = CaseUseFile(desk / "runs").read()
    assert (use.kind, len(use.validation)) == ("try", 8)
    result = load_run(desk, settings={"max_rounds": 1, "final_test": False}).begin().run_sync()
    assert (result.case_history.seen_cases, result.case_history.earlier_runs) == (8, 0)


def test_files_that_a_prompt_may_be_in_are_watched(tmp_path: Path) -> None:
    for name in ("agent.py", "prompts/a.md", "runs/r/report.md", ".venv/x.py", "env/pyvenv.cfg", "env/x.py", "a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    watched = WatchedFiles([tmp_path], skipped=tmp_path / "runs")
    before = watched.take_snapshot()
    assert {file.relative_to(tmp_path).as_posix() for file in before} == {"agent.py", "prompts/a.md"}
    os.utime(tmp_path / "agent.py")
    assert watched.take_snapshot() == before  # saved without a change
    (tmp_path / "prompts" / "a.md").write_text("edited")
    after = watched.take_snapshot()
    assert describe_change(before, after) == "a.md was saved"
    (tmp_path / "b.txt").write_text("new")
    (tmp_path / "c.txt").write_text("new")
    assert describe_change(after, watched.take_snapshot()) == "b.txt and 1 more were saved"


@pytest.mark.long
def test_watch_tries_each_edit_that_is_saved_until_ctrl_c(desk: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "promptiter", "try", "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None

        def read_until(wanted: str) -> str:
            shown = ""
            for line in process.stdout or ():
                shown += line
                if wanted in line:
                    return shown
            raise AssertionError(shown)

        assert "Recorded the baseline" in read_until("press Ctrl-C to end")
        edit(desk, (FILING, FULL_FILING), (RECEPTION, FULL_RECEPTION))
        assert "Improved on these 8 cases" in read_until("press Ctrl-C to end")
        edit(desk, (LEAD, "Say hello."))
        shown = read_until("press Ctrl-C to end")
        assert "agent.py was saved; trying again" in shown
        assert "the 3 edited texts" in shown
        cases = desk / "data" / "validation.jsonl"
        cases.write_text("".join(cases.read_text().splitlines(keepends=True)[:6]))
        assert "on these 6 cases" in read_until("press Ctrl-C to end")
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0


@pytest.mark.long
def test_ctrl_c_reports_what_was_measured_so_far(desk: Path) -> None:
    file, cache = desk / "promptiter.yaml", desk / "cache.jsonl"
    settings = {"models": {"simulated": {"latency_s": 0.05}}, "evaluation": {"concurrency": 4}, "cache": str(cache)}
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | settings))
    command = [sys.executable, "-m", "promptiter", "try", "--json", "--set", "lead#instruction=Say hello."]
    with subprocess.Popen(command, cwd=desk, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            while not cache.exists() or cache.read_bytes().count(b"\n") < 60:
                assert running.poll() is None
                time.sleep(0.02)
            running.send_signal(signal.SIGINT)
            shown, errors = running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == 130, errors
    assert "Ctrl-C: finishing the work in progress; a second one stops at once\n" in errors
    found = orjson.loads(shown)
    assert (found["answer"], found["stop_reason"]) == ("undecided", "user_stop")
    assert 0 < found["measured"]["spent"]["calls"] < 16 * 8  # of 8 cases, 2 repeats, 6 + 2 steps
