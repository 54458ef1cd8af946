from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from promptiter.profile import Profile
from promptiter.runs.summary import read_summary
from tests.cli.conftest import Run
from traces.model import Json

FAILING = """
from promptiter import SetupError
from promptiter.agents.function import agent

@agent(instruction="Repeat the question.")
def broken(question: str) -> str:
    {}
"""


def in_file(desk: Path, **settings: Json) -> None:
    """Write promptiter.yaml with these keys; JSON is valid YAML."""
    path = desk / "promptiter.yaml"
    lines = (f"{key}: {orjson.dumps(value).decode()}\n" for key, value in settings.items())
    path.write_text("agent: agent:agent\ntrain: data/train.jsonl\nvalidation: data/validation.jsonl\n" + "".join(lines))


GIVEN = "the order id, the product, the amount, the city"
METRICS = {"metrics": "metrics.json", "models": {"simulated": {"compliance": 1.0}}}


@pytest.mark.slow
def test_a_run_ends_with_the_first_diff_one_headline_the_cost_and_a_command(run: Run, desk: Path) -> None:
    lines = run("run").splitlines()
    [folder] = (desk / "runs").glob("[!.]*")
    assert lines[0] == "What changed: 2 of 6 surfaces"
    assert lines[1] == "  filing#instruction"
    assert lines[3] == "    - Reply only with a JSON object with the keys order id, product, amount, city and wish."
    assert lines[4].startswith('    + Return a JSON object with exactly the keys "order id", "product", "purchase')
    assert lines[7].startswith("    why: 12 of 12 failed cases (response): This step received values ")
    assert lines[-12:-10] == ["  and 1 more surface: reception#instruction", ""]
    few = "8 validation cases, which the search selected on, are too few for a gain of this size"
    assert lines[-10:-6] == [
        "✓ Improved on these 8 cases: mean score 0.500 → 1.000 (same in every repeat)",
        f"  Not shown for new cases: {few}; give a",
        "  test set (`test`) of 8 cases or more",
        "  all 8 validation cases pass",
    ]
    assert re.fullmatch(r"  cost \$0 \(offline model\), \d+ model calls, \d+\.\d s", lines[-6])
    assert lines[-5:] == [
        f"  adopted: runs/{folder.name}/surfaces/ and profiles/best.json",
        f"  report: runs/{folder.name}/report.html",
        f"  details: promptiter show runs/{folder.name}",
        f"  all diffs: promptiter show runs/{folder.name} --diff",
        f"  apply: promptiter apply runs/{folder.name}",
    ]
    assert len(lines) <= 21
    best = Profile.load(folder / "profiles" / "best.json")
    assert sorted(best.overrides) == ["filing#instruction", "reception#instruction"]
    assert (folder / "surfaces" / "filing#instruction.best.md").read_text() == best.overrides["filing#instruction"]


@pytest.mark.slow
def test_costs_adds_the_accounting(run: Run, desk: Path) -> None:
    shown = run("run", "--costs")
    calls = re.search(r"cost \$0 \(offline model\), ([\d,]+) model calls", shown)
    assert calls is not None
    assert f"  agent: {calls[1]} calls, " in shown
    assert f"  {calls[1]} calls, expected " in shown
    stages = shown[shown.index("stage ") :].splitlines()[1:]
    assert sum(int(line.split()[1]) for line in stages) == int(calls[1])


@pytest.mark.slow
def test_no_line_of_a_pipe_ends_with_spaces(run: Run, desk: Path) -> None:
    shown = run("run", "--costs") + run("show") + run("runs")
    assert [line for line in shown.splitlines() if line != line.rstrip()] == []


@pytest.mark.slow
def test_progress_goes_to_standard_error_and_names_what_is_evaluated(run: Run, desk: Path) -> None:
    folder, *lines = run("run", stream="err").splitlines()
    assert folder == f"runs/{next((desk / 'runs').glob('[!.]*')).name}/"
    assert lines[0] == "support_desk  12 train, 8 validation cases; 6 surfaces may change"
    assert lines[1] == "baseline    validation: 0.500, 0/8 pass"
    assert "round 1     blame: reception#instruction (12 cases)" in lines
    assert "round 1     stop: mean_score 1.000 reaches 1" in lines
    assert "ablation    without filing#instruction: 0.500, 0/8 pass" in lines
    assert "ablation    without reception#instruction: 0.500, 0/8 pass" in lines
    assert sorted(lines[-4:-2]) == ["final test  baseline: 0.500, 0/8 pass", "final test  best: 1.000, 8/8 pass"]
    assert [line.partition(": ")[0] for line in lines[-2:]] == ["final test  these cases", "final test  new cases"]


@pytest.mark.slow
def test_standard_output_is_only_json(run: Run, desk: Path) -> None:
    agent = desk / "agent.py"
    agent.write_text(agent.read_text() + '\nprint("agents may print")\n')
    found = orjson.loads(run("run", "--json", "--runs", desk / "elsewhere"))
    assert (found["verdict"], found["status"], found["exit_code"]) == ("improved_on_validation", "succeeded", 0)
    assert found["stop"]["reasons"][0]["kind"] == "target_score"
    assert Path(found["path"]).parent == desk / "elsewhere"
    assert orjson.loads((Path(found["path"]) / "result.json").read_bytes())["rounds"] == found["rounds"]


@pytest.mark.slow
def test_quiet_prints_only_the_verdict(run: Run, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_file(desk, **METRICS, quiet=True)
    assert run("run").splitlines() == [
        "support_desk: Improved on these 8 cases: mean score 0.500 → 1.000 (same in every repeat)"
    ]
    assert capsys.readouterr().err == ""
    assert len(run("run", "--no-quiet").splitlines()) > 10


@pytest.mark.slow
def test_flags_win_over_the_file(run: Run, desk: Path) -> None:
    in_file(desk, **METRICS, max_rounds=0, seed=1, targets=["filing#instruction"], evaluation={"concurrency": 2})
    shown = run("run", "--json", stream="out")
    assert orjson.loads(shown)["targets"] == ["filing#instruction"]
    given = ("--max-rounds", "1", "--seed", "7", "--concurrency", "4", "--max-usd", "1")
    targets = ("--targets", "filing#instruction,lead#instruction", "--targets", "reception#instruction")
    found = orjson.loads(run("run", "--json", *given, *targets))
    assert found["targets"] == ["filing#instruction", "lead#instruction", "reception#instruction"]
    assert len(found["rounds"]) == 1


@pytest.mark.slow
def test_a_run_can_start_from_the_profile_of_another(run: Run, desk: Path) -> None:
    first = Path(orjson.loads(run("run", "--json"))["path"])
    shown = run("run", "--initial-profile", first / "profiles" / "best.json", stream="out")
    assert "✓ Nothing to fix: the baseline reaches the target score: mean score 1.000" in shown.splitlines()
    assert "What changed" not in shown


@pytest.mark.slow
def test_without_rounds_the_baseline_is_shown_and_no_verdict(run: Run, desk: Path) -> None:
    assert run("run", "--max-rounds", "0").splitlines()[:2] == [
        "● Baseline: mean score 0.500",
        "  8 of 8 validation cases fail",
    ]
    assert "baseline only" in run("runs")


@pytest.mark.slow
def test_without_a_blamed_surface_there_is_no_evidence(run: Run, desk: Path) -> None:
    shown = run("run", "--targets", "lead#instruction", code=3, stream="out")
    assert "(no candidate was tried: no surface could be blamed for the failures)" in " ".join(shown.split())
    shown = run("show")
    assert "  no surface could be blamed for the failures" in shown
    assert "stopped: the search has nothing left to try" in run("show", "--rounds")


@pytest.mark.slow
def test_a_candidate_that_does_not_help_is_reported_with_the_reason(run: Run, desk: Path) -> None:
    run("run", "--targets", "reception#instruction", code=3)
    shown = run("show")
    assert "  reception#instruction  12 cases, patch rejected" in shown.splitlines()
    assert re.search(r"round 1 +reception#instruction: the 12 failed train cases that were run again did no", shown)
    _, title, rejected = run("show", "--rounds").partition("Rejected patches\n")
    assert title
    assert re.match(r"  round 1  reception#instruction\n(?:.*\n)*?    \+ .*purchase date", rejected)


@pytest.mark.slow
def test_a_spent_budget_exits_with_6(run: Run, desk: Path) -> None:
    in_file(desk, **METRICS, budget={"max_calls": 60})
    shown = run("run", code=6, stream="out")
    assert "The budget ended before the final test" in shown
    reason = (
        r"final test: mean score \S+; \d+ of 60 calls \(max_calls\) are spent, and \d+ are reserved for the final test"
    )
    assert re.search(reason, re.sub(r"\s+", " ", shown))
    assert re.search(r"^  the whole run was expected to take \d+ calls \(\d+ to [\d,]+\)$", shown, re.MULTILINE)
    [folder] = (desk / "runs").glob("[!.]*")
    assert f"  resume: promptiter resume runs/{folder.name}" in shown.splitlines()


@pytest.mark.slow
def test_targets_that_the_search_cannot_change_are_reported_before_the_run_and_at_its_end(run: Run, desk: Path) -> None:
    targets = ["reception#examples", "reception#instruction"]
    in_file(desk, **METRICS, search="few_shot", targets=targets, max_rounds=0)
    kept = "this search cannot change some targets, so they keep their values: reception#instruction"
    assert f"warning: {kept}" in run("run", stream="err").splitlines()
    assert kept in re.sub(r"\s+", " ", run("show"))


@pytest.mark.slow
def test_a_small_test_set_and_a_small_budget_are_reported_before_the_run(run: Run, desk: Path) -> None:
    data = desk / "data"
    lines = (data / "train.jsonl").read_text().splitlines(keepends=True)
    (data / "train.jsonl").write_text("".join(lines[6:]))
    (data / "test.jsonl").write_text("".join(lines[:6]))
    in_file(desk, **METRICS, budget={"max_calls": 60}, test="data/test.jsonl")
    shown = run("run", code=6, stream="err")
    warnings = [line for line in shown.splitlines() if line.startswith("warning: ")]
    assert warnings[0] == (
        "warning: the test set will not be run: 6 cases cannot decide about new cases; give at least 8"
    )
    assert re.fullmatch(
        r"warning: max_calls is 60, but the whole run is expected to take \d+ calls \(\d+ to [\d,]+\), so the budget "
        r"will probably end before anything is shown; raise max_calls",
        warnings[1],
    )
    assert shown.index(warnings[1]) < shown.index("runs/"), "before anything is spent"
    assert "stop: the budget has ended\n" in shown, "why is said once, at the end"


@pytest.mark.slow
def test_too_many_failures_exit_with_7(run: Run, desk: Path) -> None:
    (desk / "agent.py").write_text(FAILING.format('raise ValueError("no")'))
    (desk / "promptiter.yaml").write_text((desk / "promptiter.yaml").read_text().replace("agent:agent", "agent:broken"))
    headline = "Invalid evaluation: 100% of the baseline's runs or scores failed: ValueError: no (agent.py:7) (×8)"
    for option in ("--quiet", "--no-quiet"):
        shown = re.sub(r"\s+", " ", run("run", option, code=7, stream="out"))
        assert headline in shown
        sys.modules.pop("agent")
    assert "\nValueError: no (agent.py:7)\n" in run("trace", "show", "latest", "--case", "blender")


@pytest.mark.slow
def test_a_failed_run_shows_its_cause_and_exits_with_1(run: Run, desk: Path) -> None:
    fails_on_train = 'if "kettle" in question: raise SetupError("the kettle is gone")\n    return question'
    (desk / "agent.py").write_text(FAILING.format(fails_on_train))
    (desk / "promptiter.yaml").write_text((desk / "promptiter.yaml").read_text().replace("agent:agent", "agent:broken"))
    shown = run("run", code=1, stream="out")
    assert shown.splitlines()[0] == "✗ Failed in round 1: SetupError: the kettle is gone"
    [folder] = (desk / "runs").glob("[!.]*")
    assert orjson.loads((folder / "result.json").read_bytes())["status"] == "failed"
    sys.modules.pop("agent")
    assert "error: the run failed in round 1: SetupError: the kettle is gone" in run("run", "--json", code=1)
    sys.modules.pop("agent")
    quiet = run("run", "--quiet", code=1, stream="out")
    assert quiet == "broken: Failed in round 1: SetupError: the kettle is gone\n"


def test_all_problems_are_reported_together_before_anything_is_spent(run: Run, desk: Path) -> None:
    (desk / "data" / "validation.jsonl").unlink()
    (desk / "promptiter.yaml").write_text(
        "agent: agent:agnet\ntrain: data/train.jsonl\nvalidation: data/validation.jsonl\nmetrics: metrics.jsn\n"
        "max_round: 3\nruns: agent.py/runs\n"
    )
    errors = run("run", "--review", code=2)
    assert errors.splitlines() == [
        "error: the run cannot start, it has 6 problems:",
        "  - promptiter.yaml: unknown key 'max_round' (did you mean 'max_rounds'?)",
        f"  - runs: '{desk}/agent.py/runs' cannot be used: '{desk}/agent.py' is a file; choose another folder",
        "  - review: standard input is not a terminal, so patches cannot be reviewed; remove --review",
        "  - agent: 'agent' has no 'agnet' (did you mean 'agent'?)",
        f"  - metrics: {desk}/metrics.jsn: cannot be read: No such file or directory",
        f"  - validation: {desk}/data/validation.jsonl: cannot be read: No such file or directory; check the path",
    ]
    assert not (desk / "runs").exists()


def test_wrong_inputs_are_readable(run: Run, desk: Path) -> None:
    assert "`promptiter init` writes one" in run("run", "gone.yaml", code=2)
    errors = run("run", "--targets", "filling#instruction", code=2)
    assert "unknown surface 'filling#instruction' (did you mean 'filing#instruction'?)" in errors
    (desk / "data" / "validation.jsonl").write_bytes((desk / "data" / "train.jsonl").read_bytes())
    assert "train and validation share 12 cases: 'kettle', 'lamp'" in run("run", code=2)
    in_file(desk, metrics="metrics.json", agent="no_such_module:agent")
    path = desk / "promptiter.yaml"
    path.write_text(path.read_text().replace("agent: agent:agent\n", "", 1))
    assert "agent: cannot import 'no_such_module': ModuleNotFoundError" in run("run", code=2)


def test_exit_codes_are_documented_once(run: Run) -> None:
    codes = "3 no evidence; 4 underpowered; 5 overfit risk; 6 budget ended; 7 invalid evaluation; 8 not shown for"
    assert codes in re.sub(r"\s+", " ", run("--help"))
    assert codes not in re.sub(r"\s+", " ", run("run", "--help"))


class Terminal:
    """The command on a pseudo-terminal, with scripted input."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self.printed = ""
        self._read = 0
        child, self._fd = pty.fork()
        if child == 0:
            os.chdir(folder)
            kept = {key: value for key, value in os.environ.items() if key not in ("EDITOR", "VISUAL")}
            command = [sys.executable, "-m", "promptiter", *arguments]
            os.execve(sys.executable, command, {**kept, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1", **environ})
        self._child = child

    def wait_for(self, text: str, *, seconds: float = 30.0) -> None:
        """Wait until the terminal shows a text after the previous one."""
        until = time.monotonic() + seconds
        while text not in self.printed[self._read :]:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"no {text!r} in:\n{self.printed}"
            self.printed += os.read(self._fd, 65536).decode()
        self._read = self.printed.index(text, self._read) + len(text)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def end(self, *, seconds: float = 30.0) -> int:
        """Wait for the exit code; a command that does not end is killed."""
        until = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                os.kill(self._child, signal.SIGKILL)
            try:
                read = os.read(self._fd, 65536)
            except OSError:  # Linux raises this when the other side has closed
                break
            self.printed += read.decode(errors="replace")
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])


def play(terminal: Terminal, script: Sequence[tuple[str, str]]) -> int:
    for shown, typed in script:
        terminal.wait_for(shown)
        terminal.type(typed)
    return terminal.end()


ASKED = "(a)pprove, (e)dit or (v)eto? "


@pytest.mark.long
def test_one_patch_is_approved_and_another_edited(desk: Path) -> None:
    terminal = Terminal(desk, "run", "--review")
    edited = (
        "You file cases.\n"
        "Reply only with a JSON object with the keys order id, product, purchase date, amount, city and wish.\n"
        "Copy the values exactly as given."
    )
    code = play(terminal, [(ASKED, "what?\n"), (ASKED, "a\n"), (ASKED, "e\n"), ("only '.'", f"{edited}\n.\n")])
    assert code == 0, terminal.printed
    assert "blamed by 12 cases" in terminal.printed
    [folder] = (desk / "runs").glob("[!.]*")
    assert (folder / "surfaces" / "filing#instruction.best.md").read_text() == edited


@pytest.mark.long
def test_a_patch_is_edited_in_an_editor(desk: Path) -> None:
    editor = desk / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/^You are/YOU ARE/' \"$1\"\n")
    editor.chmod(0o700)
    terminal = Terminal(
        desk, "run", "--review", "--targets", "reception#instruction,filing#instruction", EDITOR=str(editor)
    )
    assert play(terminal, [(ASKED, "e\n"), (ASKED, "a\n")]) == 0, terminal.printed
    [folder] = (desk / "runs").glob("[!.]*")
    assert (folder / "surfaces" / "reception#instruction.best.md").read_text().startswith("YOU ARE the reception")


@pytest.mark.slow
def test_the_reason_of_a_veto_is_kept_and_the_veto_holds(desk: Path) -> None:
    terminal = Terminal(desk, "run", "--review", "--max-rounds", "1")
    code = play(terminal, [(ASKED, "v\n"), ("why? ", "the reception stays as it is\n")])
    assert code == 3, terminal.printed
    [folder] = (desk / "runs").glob("[!.]*")
    vetoed = read_summary(folder).rejections[0]
    assert vetoed.surface_ids == ("reception#instruction",)
    assert vetoed.reason == "vetoed in review: the reception stays as it is"


def slow_down(desk: Path, latency_s: float = 0.4) -> None:
    in_file(desk, metrics="metrics.json", models={"simulated": {"compliance": 1.0, "latency_s": latency_s}})


@pytest.mark.slow
def test_the_first_signal_finishes_the_work_in_progress_and_the_second_stops_at_once(desk: Path) -> None:
    slow_down(desk, latency_s=3)
    command = [sys.executable, "-m", "promptiter", "run"]
    with subprocess.Popen(
        command, cwd=desk, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("runs/")
        assert running.stderr.readline().startswith("support_desk")
        time.sleep(1)  # until the first calls have begun, which then take three seconds
        running.send_signal(signal.SIGINT)
        assert running.stderr.readline() == "Ctrl-C: finishing the work in progress; a second one stops at once\n"
        running.send_signal(signal.SIGINT)
        shown, _ = running.communicate(timeout=30)
    assert running.returncode == 130
    assert shown.startswith("● Cancelled")
    [folder] = (desk / "runs").glob("[!.]*")
    assert orjson.loads((folder / "result.json").read_bytes())["status"] == "cancelled"


@pytest.mark.long
def test_ctrl_c_at_a_question_does_not_hang(desk: Path) -> None:
    terminal = Terminal(desk, "run", "--review")
    code = play(terminal, [(ASKED, "\x03"), ("a second one stops at once", "\x03")])
    assert code == 130, terminal.printed


@pytest.mark.long
def test_the_summary_of_another_goal_shows_the_usage_per_run(run: Run, desk: Path) -> None:
    in_file(desk, **METRICS, goal={"fewer_tokens": {"margin": 0.2}})
    shown = run("run")
    assert "✓ Fewer tokens and no worse on these 8 cases: mean score 0." in shown
    found = re.search(r"  per run: (\d+) → (\d+) tokens, (\d+) → (\d+) input tokens, \$0 → \$0 dollars\n", shown)
    assert found is not None, shown
    assert int(found[2]) < int(found[1])
    assert int(found[4]) < int(found[3])
    assert "What changed" in shown
    assert "Blame" not in run("show")
    assert "train cases with the change" in run("run", stream="err")


@pytest.mark.slow
def test_a_search_for_another_goal_that_finds_nothing_is_reported(run: Run, desk: Path) -> None:
    in_file(desk, **METRICS, goal="fewer_tokens", targets=["reception#examples"])
    assert "● No tokens could be saved without a loss of quality, nothing adopted" in run("run", code=3, stream="out")
