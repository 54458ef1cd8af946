from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import orjson
import pytest
import typer
from typer.testing import CliRunner, Result

from promptiter.cli.commands.check import check
from promptiter.errors import EvalSetError, SetupError
from tests.cli.conftest import Run
from traces.model import Json

app = typer.Typer()
app.command()(check)

LONG = "please write a short and friendly note to the customer who asked about the delivery of the red bicycle last"

AGENT = """
from promptiter.agents.function import agent

@agent(instruction="Answer.")
async def echo(text):
    return {"one": "1", "two": "two", "broken": None}[text] or 1 / 0
"""

JUDGE = """
from collections import Counter

asked = Counter()

async def judge(case, run):
    asked[case.id] += 1
    return asked[case.id] % 2
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # commands add the folder they run in
    return tmp_path


def run(*arguments: str, code: int = 0) -> str:
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    return result.output


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, arguments)


def write(name: str, *cases: dict[str, Json]) -> str:
    Path(name).write_bytes(b"\n".join(orjson.dumps(case) for case in cases))
    return name


def write_metrics(name: str, *metrics: dict[str, Json]) -> str:
    Path(name).write_bytes(orjson.dumps(list(metrics)))
    return name


def case(case_id: str, text: str, expected: str | None = "yes") -> dict[str, Json]:
    return {"id": case_id, "input": text} | ({} if expected is None else {"expected": expected})


def test_a_sound_eval_set_has_no_serious_problems() -> None:
    assert run(write("good.jsonl", case("a", "one"), case("b", "two"))) == (
        "good.jsonl  2 cases, no findings\n\nno serious problems\n"
    )


def test_contradictions_are_shown_with_advice_and_exit_7() -> None:
    shown = run(write("bad.jsonl", case("a", "One?", "1"), case("b", "one", "2"), case("c", "two")), code=7)
    for expected in (
        "bad.jsonl  3 cases, 1 contradiction\n",
        "1 contradiction: the same question has different expected answers; correct one",
        "a, b   One?",
        "expected '1' or '2'",
        "serious problems: fix bad.jsonl",
    ):
        assert expected in shown


def test_findings_that_are_not_serious_exit_0() -> None:
    cases = [
        case("a", f"{LONG} week"),
        case("b", f"{LONG} month"),
        case("c", "two"),
        case("d", "Two."),
        case("e", "three", None),
        case("f", "four", " "),
        case("g", "say twelve chars", "twelve chars"),
        case("h", "word " * 1_000),
    ]
    shown = run(write("some.jsonl", *cases))
    assert " ".join(shown.split()).startswith(
        "some.jsonl 8 cases, 1 duplicate, 1 near duplicate, 1 case without a reference, 1 empty reference, "
        "1 leaked reference, 1 very long input "
    )
    for expected in ("c, d ", "a, b ", "similarity 0.8", "5,000 characters", "no serious problems"):
        assert expected in shown


def test_a_set_without_references_cannot_be_scored_unless_the_metrics_need_none() -> None:
    source = write("bare.jsonl", case("a", "one", None), case("b", "two", None))
    assert "no case can be scored: none has a reference" in run(source, code=7)
    length = {"metric_name": "length", "criterion": {"max": 10}}
    assert "no serious problems" in run(source, "--metrics", write_metrics("length.json", length))
    exact: dict[str, Json] = {"metric_name": "exact_match"}
    run(source, "--metrics", write_metrics("exact.json", exact), code=7)


def test_eval_sets_that_overlap_exit_7() -> None:
    Path("data").mkdir()
    train = write("data/train.jsonl", case("a", "one"), case("b", "two"))
    validation = write("data/validation.jsonl", case("x", "ONE", "no"), case("y", "three"))
    shown = run(train, validation, code=7)
    assert "1 overlap: the same case is in several eval sets" in shown
    assert "train.jsonl:a, validation.jsonl:x" in shown
    assert "remove shared cases from all eval sets but one" in shown
    found = orjson.loads(run(train, validation, "--json", code=7))
    assert found["is_serious"]
    assert [(each["case_ids"], each["sources"]) for each in found["overlaps"]] == [(["a", "x"], [train, validation])]
    assert [each["findings"] for each in found["eval_sets"]] == [[], []]


def test_long_lists_are_cut_and_json_has_all() -> None:
    source = write("many.jsonl", case("ok", "fine"), *(case(f"c{n}", f"question {n}", None) for n in range(30)))
    shown = run(source)
    assert "… 10 more; --json lists all" in shown
    assert "c19" in shown
    assert "c20" not in shown
    (found,) = orjson.loads(run(source, "--json"))["eval_sets"]
    assert (found["cases"], found["scorable"], found["counts"]) == (31, 1, {"missing_reference": 30})
    assert len(found["findings"]) == 30
    assert found["noise"] is None


def test_an_agent_shows_uninformative_cases_and_the_noise(folder: Path) -> None:
    (folder / "echo_agent_of_check.py").write_text(AGENT)
    write_metrics("test_config.json", {"metric_name": "exact_match"})
    source = write("set.jsonl", case("a", "one", "1"), case("b", "two", "2"), case("c", "broken"))
    shown = run(source, "--agent", "echo_agent_of_check:echo", "--repeats", "2")
    for expected in (
        "1 case that always passes",
        "1 case that never passes",
        "0 of 2 runs pass",
        "1 case without a score",
        "ZeroDivisionError",
        "2 repeats of each case, each judged 2 times",
        "exact_match  0.500  50%      unknown      unknown  each case always scores 0 or 1, and noise",
    ):
        assert expected in shown
    (found,) = orjson.loads(run(source, "--agent", "echo_agent_of_check:echo", "--json"))["eval_sets"]
    problem = found["noise"].pop("problem")
    assert problem.startswith("33% of the runs or scores failed, the limit is 25%: ZeroDivisionError")
    assert found["noise"] == {
        "objective": "mean_score",
        "cases": 3,
        "repeats": 3,
        "judge_repeats": 2,
        "is_simulated": False,
        "pass_rate": pytest.approx(1 / 3),
        "metrics": [
            {
                "metric": "exact_match",
                "agent_variance": None,
                "judge_variance": None,
                "mean": 0.5,
                "met": 0.5,
                "bound": "either",
            }
        ],
    }


def test_the_noise_is_reported_as_by_the_noise_command(folder: Path) -> None:
    (folder / "steady_agent_of_check.py").write_text(AGENT)
    write_metrics("test_config.json", {"metric_name": "rouge", "threshold": 0.5})
    source = write("set.jsonl", case("a", "one", "1 of 1"), case("b", "two", "2 of 2"))
    arguments = (source, "--agent", "steady_agent_of_check:echo")
    assert "Run noise      none seen: every case scored the same in all 3 repeats; what happens" in run(*arguments)
    (found,) = orjson.loads(run(*arguments, "--json"))["eval_sets"]
    assert (found["noise"]["std"], found["noise"]["settled"], found["noise"]["gain"]) == (0.0, ["a", "b"], 0.0)
    smallest = found["noise"]["smallest_gain"]
    assert [each["cases"] for each in smallest] == [2, 4, 8]
    assert smallest[0]["gain"] > smallest[1]["gain"] > smallest[2]["gain"] > 0


def test_nothing_is_known_about_noise_if_all_cases_fail(folder: Path) -> None:
    (folder / "failing_agent_of_check.py").write_text(AGENT)
    write_metrics("test_config.json", {"metric_name": "exact_match"})
    source = write("set.jsonl", case("a", "one", "10"), case("b", "two", "20"))
    shown = " ".join(run(source, "--agent", "failing_agent_of_check:echo").split())
    unknown = "Run noise unknown: every case has the worst score in all 3 repeats, which says nothing about noise; add"
    assert unknown in shown
    assert "Smallest gain unknown, as the noise is" in shown
    assert "any difference" not in shown
    (found,) = orjson.loads(run(source, "--agent", "failing_agent_of_check:echo", "--json"))["eval_sets"]
    noise = found["noise"]
    assert (noise["bound"], noise["std"], noise["noise_floor"], noise["smallest_gain"]) == ("floor", None, None, [])


def test_a_noisy_judge_is_reported_from_a_steady_agent(folder: Path) -> None:
    (folder / "noisy_judge_of_check.py").write_text(AGENT + JUDGE)
    metrics = write_metrics("noisy.json", {"metric_name": "noisy_judge_of_check:judge"})
    source = write("set.jsonl", case("a", "one", "1"), case("b", "two", "2"))
    shown = run(source, "--agent", "noisy_judge_of_check:echo", "--metrics", metrics)
    assert re.search(r"judge_of_check:judge .* 0\.000 +0\.707  the judge is noisier than the agent: raise", shown)


def test_a_set_without_any_score_exits_7(folder: Path) -> None:
    (folder / "broken_agent_of_check.py").write_text(AGENT)
    metrics = write_metrics("exact.json", {"metric_name": "exact_match"})
    source = write("set.jsonl", case("a", "broken"))
    shown = run(source, "--agent", "broken_agent_of_check:echo", "--metrics", metrics, code=7)
    assert "no case can be scored: see below why the runs failed" in shown


def test_figures_of_the_offline_model_are_labelled(folder: Path) -> None:
    (folder / "offline_agent_of_check.py").write_text(
        "from promptiter.agents.function import agent, ask\n\n"
        "@agent()\nasync def echo(text):\n    return await ask(text, model='simulated')\n"
    )
    metrics = write_metrics("exact.json", {"metric_name": "exact_match"})
    source = write("set.jsonl", case("a", "What is it?"))
    chosen = (source, "--agent", "offline_agent_of_check:echo", "--metrics", metrics)
    assert "noise (offline model)" in run(*chosen)
    assert orjson.loads(run(*chosen, "--json"))["eval_sets"][0]["noise"]["is_simulated"]


def test_output_goes_to_a_file() -> None:
    source = write("good.jsonl", case("a", "one"))
    assert run(source, "-o", "health.txt") == ""
    assert Path("health.txt").read_text() == f"{source}  1 case, no findings\n\nno serious problems\n"
    run(source, "--json", "-o", "health.json")
    assert orjson.loads(Path("health.json").read_bytes())["is_serious"] is False


def test_the_text_of_cases_is_not_markup() -> None:
    shown = run(write("[red].jsonl", case("[bold]", "[/] what?", None), case("b", "fine")))
    assert "[red].jsonl  2 cases" in shown
    assert "[bold]  [/] what?" in shown


def test_wrong_usage_gets_advice(folder: Path) -> None:
    source = write("good.jsonl", case("a", "one"))
    assert "promptiter.yaml: cannot be read" in str(invoke().exception)
    run(source, "--agent", "x:y", "--repeats", "1", code=2)
    (folder / "idle_agent_of_check.py").write_text(AGENT)
    wrong = invoke(source, "--agent", "idle_agent_of_check:echo").exception
    assert isinstance(wrong, SetupError)  # `promptiter` exits 2 on it
    assert str(wrong) == f"no metrics: pass --metrics FILE, or put a test_config.json into '{os.curdir}'"
    write_metrics("test_config.json", {"metric_name": "exact_match"})
    assert "cannot import 'nothing'" in str(invoke(source, "--agent", "nothing:here").exception)
    missing = invoke("missing.jsonl").exception
    assert isinstance(missing, EvalSetError)
    assert "missing.jsonl: cannot be read" in str(missing)


def test_references_that_json_match_cannot_read_are_named(run: Run, desk: Path) -> None:
    file = desk / "data" / "validation.jsonl"
    first, *others = map(orjson.loads, file.read_text().splitlines())
    first["expected"] = "It is green."
    file.write_text("\n".join(orjson.dumps(each).decode() for each in (first, *others)))
    shown = run("check", file, "--metrics", "metrics.json")
    assert "1 reference that is not JSON" in shown
    assert f"{first['id']}" in shown
