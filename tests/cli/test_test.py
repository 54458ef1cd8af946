"""`promptiter test optimize` and `promptiter test run`: options, artifacts and exit codes of HoloDeck."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Run
from tests.worlds.financial_assistant import copy_assistant, find_block, write_changed

INTERRUPT = """\
    CALLS.append(1)
    if len(CALLS) == 130 and not os.path.exists("interrupted"):
        os.mkdir("interrupted")
        os.kill(os.getpid(), 2)
"""
SHORT = ("--max-cycles", "1", "--numeric-max-trials", "2", "--textual-max-trials", "2", "--repeats", "2")


@pytest.fixture
def assistant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with copy_assistant(tmp_path / "assistant", monkeypatch) as folder:
        yield folder


def find_results(folder: Path) -> Path:
    [found] = (folder / "results" / "optimizer").iterdir()
    return found


def read_trials(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def test_a_dry_run_prints_axes_budget_and_loss(run: Run, assistant: Path) -> None:
    printed = run("test", "optimize", "--dry-run", "--max-cycles", "7", "--repeats", "1")
    assert "tools[name=archive].top_k: whole numbers 3 to 20; now 3" in printed
    assert "instructions.file: text, at most 4000 characters" in printed
    assert "max_cycles: 7" in printed
    assert "numeric: 0.7" in printed
    assert not (assistant / "runs").exists()


def test_the_baseline_alone_is_printed(run: Run, assistant: Path) -> None:
    printed = run("test", "optimize", "--print-baseline")
    assert "train: loss 0.688 ±" in printed
    assert "hold-out: loss 0.758 ±" in printed
    assert "turn_program_equivalence: 0.125" in printed
    assert not (assistant / "results").exists()


def test_suggested_axes_can_be_pasted(run: Run, assistant: Path) -> None:
    suggested = yaml.safe_load(run("test", "optimize", "--suggest-axes"))["evaluations"]["optimizer"]["axes"]
    write_changed(assistant, lambda document: find_block(document).update(axes=suggested))
    assert "tools[name=divide].description: text" in run("test", "optimize", "--dry-run")


def test_a_wrong_file_is_a_fatal_error(run: Run, assistant: Path) -> None:
    (assistant / "other.yaml").write_text("agent: a:b\n")
    assert "is not an agent.yaml" in run("test", "optimize", "other.yaml", code=1)
    assert "cannot be read" in run("test", "optimize", "none.yaml", code=1)
    write_changed(assistant, lambda document: document["evaluations"].pop("optimizer"))
    assert "evaluations.optimizer: is missing; add a block such as this one" in run("test", "optimize", code=1)


@pytest.mark.parametrize("option", ["--nonsense", "--repeats=0", "--max-minutes=soon"])
def test_wrong_usage_is_a_fatal_error_since_2_means_interrupted(run: Run, assistant: Path, option: str) -> None:
    assert option.partition("=")[0] in run("test", "optimize", option, code=1)
    assert not (assistant / "runs").exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_before_the_run_starts_exits_with_2(run: Run, assistant: Path, name: str) -> None:
    model = assistant / "offline_model.py"
    model.write_text(f"{model.read_text()}\nimport os, signal\nos.kill(os.getpid(), signal.{name})\n")
    before = signal.getsignal(signal.SIGTERM)
    assert "interrupted while no run was in progress" in run("test", "optimize", code=2)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (assistant / "results").exists()


@pytest.mark.slow
def test_a_run_writes_the_artifacts_of_the_document(run: Run, assistant: Path) -> None:
    before = (assistant / "agent.yaml").read_bytes()
    progress = run("test", "optimize", *SHORT, "-v", stream="err")
    folder = find_results(assistant)
    assert (assistant / "agent.yaml").read_bytes() == before
    assert "── cycle 1 · numeric phase (fresh TPE study #1) ──" in progress
    assert "[c1/t  1] instructions.file" in progress
    assert "pattern: Questions that need arithmetic" in progress

    header = json.loads((folder / "run.json").read_text())
    assert header["run_id"] == folder.name
    assert header["baseline_agent_path"] == "../../../agent.yaml"
    assert (header["seed"], header["train_cases_count"], header["holdout_cases_count"]) == (42, 16, 8)
    assert header["optimizer_config"]["budget"]["numeric_phase"] == {"max_trials": 2, "patience": 6}
    assert header["exit_reason"] == "max_cycles"
    assert [each["phase"] for each in header["phase_exit_reasons"]] == ["numeric", "textual"]
    assert header["phase_exit_reasons"][0]["exit_reason"] == "max_trials"
    assert header["subagents"]["critic"]["agent_path"] == ".holodeck/optimizer/agents/critic.yaml"

    rows = read_trials(folder)
    assert [row["trial_id"] for row in rows] == list(range(len(rows)))
    numeric, textual = rows[1], next(row for row in rows if row["phase"] == "textual")
    assert numeric["proposal_source"]["kind"] == "numeric"
    assert set(numeric["proposal_source"]["params"]) == {
        *("model.temperature", "model.top_p", "tools[name=archive].top_k", "tools[name=archive].semantic_weight")
    }
    assert numeric["study_state"]["numeric_study_id"] == "numeric-phase-1"
    assert textual["proposal_source"]["critic"]["confidence"] == 0.8
    assert textual["proposal_source"]["applier"]["diff_lines_added"] == 1
    assert len(textual["train"]["loss_runs"]) == textual["repeats"] == 2
    assert textual["decision"]["accepted"]
    assert textual["decision"]["train_improvement"] >= textual["decision"]["noise_bar"]

    table = list(csv.DictReader((folder / "trajectory.csv").read_text().splitlines()))
    assert list(table[0]) == [
        *("trial_id", "timestamp", "cycle", "phase", "axis_target", "train_mean", "train_std", "holdout_mean"),
        *("best_train", "best_holdout", "noise_bar", "accepted", "trial_usd", "duration_sec"),
    ]
    assert (table[0]["phase"], table[0]["noise_bar"], table[0]["accepted"]) == ("baseline", "—", "true")
    accepted = [f"iter-{row['trial_id']:02}.yaml" for row in rows if row["decision"]["accepted"]]
    assert sorted(each.name for each in (folder / "candidates").iterdir()) == accepted
    assert (folder / "best.yaml").readlink() == Path("candidates") / accepted[-1]
    assert (folder / "best-instructions.md").readlink().match("instructions/system-prompt.iter-*.md")

    report = (folder / "report.md").read_text()
    titles = [line.removeprefix("## ") for line in report.splitlines() if line.startswith("## ")]
    assert titles == [
        *("Result", "Trajectory", "Attribution", "Metrics", "Diff", "Rationales", "How to adopt"),
        "Notes on the method",
    ]
    assert "+Plan the calculation first" in report

    (folder / "report.md").unlink()
    run("test", "optimize", "--report-only")
    assert (folder / "report.md").read_text() == report

    for name in ("best.yaml", f"candidates/{accepted[-1]}"):
        result = json.loads(run("test", "run", folder / name, "--json"))
        assert result["profile_digest"]
    check_adoption(assistant, folder, report)
    run("test", "optimize", "--report-only")
    assert (folder / "report.md").read_text() == report
    assert "baseline changed since run" in run("test", "optimize", "--resume", folder.name, code=1)


def check_adoption(assistant: Path, folder: Path, report: str) -> None:
    """The commands of the report put the best agent in place of the first."""
    commands = report.partition("```bash\n")[2].partition("\n```")[0].splitlines()
    subprocess.run(["sh", "-ec", "\n".join(commands)], cwd=folder, check=True)
    document = yaml.safe_load((assistant / "agent.yaml").read_text())
    assert document["instructions"]["file"] == "instructions/system-prompt.md"
    assert "Plan the calculation first" in (assistant / "instructions" / "system-prompt.md").read_text()


@pytest.mark.slow
def test_a_run_can_be_quiet_keep_only_the_best_and_write_elsewhere(run: Run, assistant: Path) -> None:
    options = ("-q", "--keep-best-only", "-o", "out", "--batch-size", "2", "--max-minutes", "5", "--seed", "3")
    progress = run("test", "optimize", *SHORT, *options, stream="err")
    assert "[c1/n" not in progress
    out = assistant / "out"
    assert [each.name for each in (out / "candidates").iterdir()] == [(out / "best.yaml").resolve().name]
    assert json.loads((out / "run.json").read_text())["seed"] == 3
    report = (out / "report.md").read_text()
    assert "+Plan the calculation first" in report
    for place in ([], ["-o", "out"]):
        (out / "report.md").unlink()
        run("test", "optimize", "--report-only", *place)
        assert (out / "report.md").read_text() == report
    check_adoption(assistant, out, report)
    (assistant / "agent.yaml").write_text(f"# mine\n{(assistant / 'agent.yaml').read_text()}")
    run("test", "optimize", "--report-only", "-o", "out")
    again = (out / "report.md").read_text()
    assert "The baseline's agent.yaml was not kept (--keep-best-only), and the file has changed since the run" in again
    assert "+Plan the calculation first" in again
    assert not (assistant / "results").exists()


@pytest.mark.long
def test_an_interrupted_run_exits_with_2_and_resumes(run: Run, assistant: Path) -> None:
    model = assistant / "offline_model.py"
    before = '    """Answer a question, or call the next tool."""\n'
    assert before in model.read_text()
    text = (
        model.read_text().replace("import json\n", "import json\nimport os\n").replace(before, f"{before}{INTERRUPT}")
    )
    model.write_text(f"{text}\n\nCALLS = []\n")
    run("test", "optimize", *SHORT, code=2)
    folder = find_results(assistant)
    assert json.loads((folder / "run.json").read_text())["exit_reason"] == "interrupted"
    assert (folder / "report.md").exists()
    changed = run("test", "optimize", "--resume", folder.name, "--max-cycles", "3", code=1)
    assert "search.options.max_cycles was 1 and is now 3" in changed
    progress = run("test", "optimize", "--resume", folder.name, stream="err")
    assert "[c1/t" in progress
    assert json.loads((folder / "run.json").read_text())["exit_reason"] == "max_cycles"
    assert [row["trial_id"] for row in read_trials(folder)][:3] == [0, 1, 2]


@pytest.mark.slow
def test_a_backend_that_fails_is_a_fatal_error_with_its_cause(run: Run, assistant: Path) -> None:
    (assistant / "broken.py").write_text("def model(request):\n    raise RuntimeError('no such host')\n")
    write_changed(assistant, lambda document: document["model"].update(name="broken:model"))
    assert "no such host" in run("test", "optimize", *SHORT, "-q", code=1)
    assert json.loads((find_results(assistant) / "run.json").read_text())["exit_reason"] == "error"


@pytest.mark.slow
def test_an_agent_of_ones_own_has_the_axes_of_the_file(run: Run, assistant: Path) -> None:
    (assistant / "own_agent.py").write_text(
        "from promptiter import GraphAgent, ModelNode\n"
        "from promptiter.agents.declarations import Parameter\n"
        "node = ModelNode(name='own', instruction='Answer.', parameters={'temperature': Parameter(value=0.5)})\n"
        "agent = GraphAgent(name='own', nodes=(node,))\n"
    )

    def change(document: dict[str, Any]) -> None:
        numeric, textual = {"path": "model.temperature", "range": [0.0, 1.0]}, {"path": "instructions.inline"}
        find_block(document)["axes"] = {"numeric": [numeric], "textual": [textual]}

    write_changed(assistant, change)
    printed = run("test", "optimize", "--agent", "own_agent:agent", "--dry-run")
    assert "model.temperature: 0 to 1; now 0.5" in printed
    printed = run("run", "agent.yaml", "--agent", "own_agent:agent", "--dry-run")
    assert "own#parameter.temperature" in printed


@pytest.mark.long
def test_a_hold_out_that_is_skipped_is_not_run_and_the_run_risks_overfitting(run: Run, assistant: Path) -> None:
    write_changed(assistant, lambda document: find_block(document).update(holdout_eval_policy="skip"))
    assert "hold-out" not in run("test", "optimize", "--print-baseline")
    assert "16 train cases, 8 hold-out cases (not used)" in run("test", "optimize", "--dry-run")
    assert "hold-out cases are never run" in run("test", "optimize", *SHORT, "-q", stream="err")
    folder = find_results(assistant)
    header = json.loads((folder / "run.json").read_text())
    assert (header["verdict"], header["holdout_cases_count"]) == ("overfit_risk", 8)
    report = (folder / "report.md").read_text()
    assert "- 16 train cases, 8 hold-out cases (not used)." in report
    assert "**The hold-out was not used." in report
    assert all(row["holdout"] is None for row in read_trials(folder))
    [journal] = (assistant / "runs").glob("*/journal.jsonl")
    assert "AAPL-2008-net-revenue-change" in journal.read_text()
    holdout = yaml.safe_load((assistant / "data" / "holdout.yaml").read_text())
    assert not [case for case in holdout if case["test_name"] in journal.read_text()]


@pytest.mark.long
def test_cost_and_latency_are_part_of_the_loss(run: Run, assistant: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        find_block(document)["penalties"] = {"cost_per_usd": 5.0, "latency_per_sec": 0.0}

    write_changed(assistant, change)
    run("test", "optimize", *SHORT, "-q")
    first = read_trials(find_results(assistant))[0]["train"]
    weighted = 0.7 * first["loss_components"]["numeric"] + 0.3 * first["loss_components"]["turn_program_equivalence"]
    assert first["penalty_components"]["cost_per_usd"] == pytest.approx(5.0 * first["trial_usd"] / 2)
    assert first["loss"] == pytest.approx(1 - weighted + first["penalty_components"]["cost_per_usd"])
