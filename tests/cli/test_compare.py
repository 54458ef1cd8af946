"""`promptiter compare` on the starter with few cases. The searches differ in how they use backprop."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from promptiter.config.comparison_plan import plan_comparison
from promptiter.config.comparison_runs import count_runs_left, run_comparison
from promptiter.errors import RequestError, SetupError
from promptiter.testing.store_hooks import Killed
from tests.cli.conftest import Run
from tests.worlds.starter import kill_runs_at

pytestmark = pytest.mark.slow

TASK = """
agent: agent:agent
train: few_train.jsonl
validation: few_validation.jsonl
metrics: metrics.json
max_rounds: 1
final_test: {repeats: 1}
"""
CLERK = """
from pathlib import Path

from promptiter import GraphAgent, ModelNode

agent = GraphAgent(name="desk", nodes=(ModelNode(name="clerk", instruction="Answer.", model="clerk"),))


async def clerk(messages):
    if Path("down").exists():
        raise RuntimeError("the server is down")
    return "yes"
"""
ONE_PASS = "search: {name: backprop, options: {passes: 1}}\n"
OPTIONS = ("compare", "whole.yaml", "one_pass.yaml", "--seeds", "2")


@pytest.fixture
def task(desk: Path) -> Path:
    """The starter with two configurations, and three cases in all."""
    for name, count in (("train", 2), ("validation", 1)):
        lines = (desk / "data" / f"{name}.jsonl").read_text().splitlines(keepends=True)
        (desk / f"few_{name}.jsonl").write_text("".join(lines[:count]))
    (desk / "whole.yaml").write_text(TASK)
    (desk / "one_pass.yaml").write_text(TASK + ONE_PASS)
    return desk


def list_journals(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("journal.jsonl"))}


def test_compare_runs_each_search_with_each_seed_and_continues_where_it_ended(run: Run, task: Path) -> None:
    printed = run(*OPTIONS, "--yes")
    assert printed.startswith("Nothing can be shown with 2 common seeds")
    assert "comparisons/whole-one_pass/comparison.html" in printed
    folder = task / "comparisons" / "whole-one_pass"
    found = sorted(str(path.parent.parent.relative_to(folder)) for path in folder.rglob("run.json"))
    assert found == ["one_pass/seed-0", "one_pass/seed-1000", "whole/seed-0", "whole/seed-1000"]
    before = list_journals(folder)
    assert run(*OPTIONS) == printed  # all runs have ended, so that nothing is asked
    assert list_journals(folder) == before

    more = orjson.loads(run(*OPTIONS[:-1], "3", "--yes", "--json"))
    assert [len(each["runs"]) for each in more["searches"]] == [3, 3]
    assert more["earlier"] == []  # two seeds could claim nothing, so that a look at them costs nothing
    assert {path: list_journals(folder)[path] for path in before} == before


@pytest.mark.long
def test_a_comparison_that_was_killed_continues_with_the_same_result(task: Path) -> None:
    wanted = run_comparison(plan_comparison(["whole.yaml", "one_pass.yaml"], seeds=2, folder="undisturbed"))
    plan = plan_comparison(["whole.yaml", "one_pass.yaml"], seeds=2, folder="killed")
    with kill_runs_at(9), pytest.raises(Killed):
        run_comparison(plan)
    ended: list[tuple[str, int]] = []
    found = run_comparison(plan, on_run=lambda planned, each: ended.append((planned.search.name, each.seed)))
    assert ended == [("whole", 0), ("one_pass", 0), ("whole", 1000), ("one_pass", 1000)]
    assert found.differences == wanted.differences
    assert [run.calls for each in found.searches for run in each.runs] == [
        run.calls for each in wanted.searches for run in each.runs
    ]

    shutil.rmtree(task / "killed" / "one_pass" / "seed-1000")
    ended.clear()
    run_comparison(plan, on_run=lambda planned, each: ended.append((planned.search.name, each.seed)))
    assert ended == [("one_pass", 1000)]


@pytest.mark.long
def test_each_result_that_could_claim_something_is_counted(task: Path) -> None:
    plan = plan_comparison(["whole.yaml", "one_pass.yaml"], seeds=6, folder="counted")
    assert (run_comparison(plan).earlier, run_comparison(plan).earlier) == ((), ())  # the same result, shown twice
    fewer = replace(plan, seeds=plan.seeds[:5])
    assert run_comparison(fewer).earlier == (6,)
    shutil.rmtree(task / "counted" / "one_pass" / "seed-0")
    again = run_comparison(plan)
    assert again.earlier == (6,)
    assert again.differences[0].needed_seeds == 7


def test_a_run_that_its_budget_ended_counts_as_cut_short(task: Path) -> None:
    capped = plan_comparison(["whole.yaml", "one_pass.yaml"], seeds=1, folder="capped", budget={"max_calls": 40})
    found = run_comparison(capped)
    assert {run.outcome for each in found.searches for run in each.runs} == {"budget_ended"}
    assert [each.cut for each in found.figures.values()] == [1, 1]
    assert count_runs_left(capped) == {"whole": 0, "one_pass": 0}


def test_a_run_whose_evaluation_was_invalid_is_run_again(task: Path) -> None:
    (task / "clerk.py").write_text(CLERK)
    models = 'models: {clerk: {model: "clerk:clerk"}}\n'
    for name, rest in (("whole", ""), ("one_pass", ONE_PASS)):
        (task / f"{name}.yaml").write_text(TASK.replace("agent:agent", "clerk:agent") + models + rest)
    (task / "down").touch()
    plan = plan_comparison(["whole.yaml", "one_pass.yaml"], seeds=1)
    broken = run_comparison(plan)
    assert [each.failed for each in broken.figures.values()] == [1, 1]
    (task / "down").unlink()
    assert count_runs_left(plan) == {"whole": 1, "one_pass": 1}
    assert [each.failed for each in run_comparison(plan).figures.values()] == [0, 0]
    assert count_runs_left(plan) == {"whole": 0, "one_pass": 0}


@pytest.mark.long
def test_runs_at_the_same_time_give_the_same_result(task: Path) -> None:
    alone, together = (
        run_comparison(
            plan_comparison(["whole.yaml", "one_pass.yaml"], seeds=2, folder=f"p{parallel}"), parallel=parallel
        )
        for parallel in (1, 3)
    )
    assert alone.differences == together.differences
    assert [[run.calls for run in each.runs] for each in alone.searches] == [
        [run.calls for run in each.runs] for each in together.searches
    ]


def test_runs_do_not_start_without_a_yes(run: Run, task: Path) -> None:
    assert "4 runs would start; add --yes" in run(*OPTIONS, code=2)
    assert not (task / "comparisons").exists()


def test_a_dry_run_prints_the_forecast_of_all_runs(run: Run, task: Path) -> None:
    printed = run(*OPTIONS, "--dry-run", "--budget", "max_calls=5000", stream="err")
    assert "whole (backprop)" in printed
    assert re.search(r"^all +4 ", printed, re.MULTILINE)
    assert "Budget of each run: max_calls 5000" in printed
    assert not (task / "comparisons").exists()


def test_a_dry_run_warns_of_what_can_show_nothing(run: Run, task: Path) -> None:
    printed = " ".join(run(*OPTIONS, "--dry-run", "--budget", "max_calls=3", stream="err").split())
    assert "warning: 2 seeds can show no difference; 2 searches need at least --seeds 6" in printed
    assert "warning: one_pass: max_calls is 3, but the whole run is expected to take" in printed
    assert "warning" not in run(*OPTIONS[:-1], "6", "--dry-run", stream="err")


def test_a_package_that_a_search_lacks_is_named_before_the_first_run(
    run: Run, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = "targets: [filing#examples]\nsearch: {name: few_shot, options: {strategy: optuna}}\n"
    (task / "one_pass.yaml").write_text(TASK + examples)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "one_pass: this search needs optuna: pip install" in run(*OPTIONS, "--yes", code=2)
    assert "warning: one_pass: this search needs optuna: pip install" in run(*OPTIONS, "--dry-run", stream="err")
    assert not (task / "comparisons").exists()


def test_other_tasks_are_refused_with_what_differs(task: Path) -> None:
    other = TASK.replace("few_train", "data/train").replace("repeats: 1", "repeats: 2")
    (task / "one_pass.yaml").write_text(
        f"{other}budget: {{max_calls: 10}}\nmodels: {{simulated: {{compliance: 0.5}}}}\n"
    )
    with pytest.raises(RequestError) as raised:
        plan_comparison(["whole.yaml", "one_pass.yaml"])
    text = str(raised.value)
    assert "whole and one_pass are not the same task: train: 10 cases differ" in text
    assert "final_test:" in text
    assert "models: the settings of simulated differ" in text
    assert "budget: no cap and max_calls 10; set one with --budget" in text


def test_what_belongs_to_a_search_may_differ(task: Path) -> None:
    (task / "one_pass.yaml").write_text(f"{TASK}{ONE_PASS}targets: [filing#instruction]\nstop: {{patience: 1}}\n")
    plan = plan_comparison([task / "whole.yaml", task / "one_pass.yaml"], budget={"max_calls": 500})
    assert [(each.name, each.search) for each in plan.searches] == [("whole", "backprop"), ("one_pass", "backprop")]
    assert plan.budget == {"max_calls": 500.0}
    assert plan.seeds == tuple(range(0, 10_000, 1_000))


def test_the_folder_of_another_comparison_is_refused(run: Run, task: Path) -> None:
    run(*OPTIONS[:-1], "1", "--yes", "--folder", "here")
    text = run(*OPTIONS[:-1], "1", "--yes", "--folder", "here", "--budget", "max_calls=999", code=2)
    assert "budget of each run: no cap; now it is max_calls 999; choose another --folder" in text
    shutil.copy("whole.yaml", "third.yaml")
    text = run("compare", "whole.yaml", "third.yaml", "--folder", "here", "--yes", code=2)
    assert "compares ../whole.yaml, ../one_pass.yaml; choose another --folder" in text


def test_a_run_of_other_inputs_is_not_mixed_in(run: Run, task: Path) -> None:
    run(*OPTIONS[:-1], "1", "--yes")
    for name in ("whole", "one_pass"):
        file = task / f"{name}.yaml"
        file.write_text(f"{file.read_text()}objective: pass_rate\n")
    assert "objective is new: pass_rate" in run(*OPTIONS[:-1], "1", "--yes", code=2)


def test_mistakes_of_the_command_line(run: Run, task: Path) -> None:
    assert "at least two configurations" in run("compare", "whole.yaml", code=2)
    assert "'whole.yaml' is given twice" in run("compare", "whole.yaml", "./whole.yaml", code=2)
    assert "--budget 'max_usd' must be KEY=VALUE" in run(*OPTIONS, "--budget", "max_usd", code=2)
    assert "max_dollars" in run(*OPTIONS, "--budget", "max_dollars=2", code=2)


def test_configurations_of_the_same_name_are_named_after_their_folders(task: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(task / "data", task / name / "data")
        (task / name / "promptiter.yaml").write_text(
            TASK.replace("few_", "../few_").replace("metrics.json", "../metrics.json") + "python_path: ..\n"
        )
    plan = plan_comparison(["first", "second"], folder=task / "out")
    assert [each.name for each in plan.searches] == ["first", "second"]


def test_in_place_agents_run_one_at_a_time(task: Path) -> None:
    plan = replace(plan_comparison(["whole.yaml", "one_pass.yaml"]), is_in_place=True)
    with pytest.raises(SetupError, match="one at a time"):
        run_comparison(plan, parallel=2)
