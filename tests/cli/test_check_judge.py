from __future__ import annotations

import re
import sys
from pathlib import Path

import orjson
import pytest
import yaml

from tests.cli.conftest import Run
from traces.model import Json

JUDGE = """
def strict(message):
    answer = message.rpartition('<data name="response">')[2].partition("</data>")[0]
    return {"verdicts": [{"id": "short", "reason": "by its length", "passed": len(answer) < 40}]}
"""


def rubric_metric(name: str, judge: str = "judges_of_check:strict") -> Json:
    criterion = {"llm_judge": {"judge_model": judge, "rubrics": [{"id": "short", "content": "It is short."}]}}
    return {"metric_name": name, "evaluator_name": "llm_rubric_response", "criterion": criterion}


@pytest.fixture
def judged(desk: Path) -> Path:
    """The desk with a judge beside its metrics, and labels of 20 answers, two of which the judge gets wrong."""
    sys.modules.pop("judges_of_check", None)  # of another test
    (desk / "judges_of_check.py").write_text(JUDGE)
    file = desk / "promptiter.yaml"
    metrics = [*orjson.loads((desk / "metrics.json").read_bytes())["metrics"], rubric_metric("brief")]
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"metrics": metrics, "max_rounds": 1}))
    rows = [f"question {n},{'long ' * 20 if n % 2 else 'short'},{'fail' if n % 2 else 'pass'}" for n in range(18)]
    rows += ["another,short too,fail", "one more,short again,fail"]
    (desk / "labels.csv").write_text("\n".join(["input,output,label", *rows]) + "\n")
    return desk


def plain(shown: str) -> str:
    return re.sub(r"\s+", " ", shown)


@pytest.mark.slow
def test_the_only_judge_of_a_project_is_compared_with_labels(run: Run, judged: Path) -> None:
    shown = plain(run("check", "--judge", "labels.csv"))
    for expected in (
        "brief 20 labelled answers, each judged 3 times",
        r"Agreement 0 ·+━+●━*·* 1 Cohen.s kappa 0\.80 \(0\.4\d to 1\.00\): almost perfect, at the lower end moder",
        "it gives the verdict of people on 90%; kappa leaves out what chance gives",
        "Leniency",
        "Judge noise standard deviation 0.000 between judgements of one answer; its verdict differs .* on 0 of 20",
        "Length bias .*rank correlation of its error with the length of the answer",
        "Position bias does not apply",
    ):
        assert re.search(expected, shown), expected
    found = orjson.loads(run("check", "--judge", "labels.csv", "--metric", "brief", "--json"))["judge"]
    assert (found["metric"], found["answers"], found["kappa"]["value"]) == ("brief", 20, pytest.approx(0.405 / 0.505))


@pytest.mark.slow
def test_what_a_judge_prints_is_not_part_of_the_json(run: Run, judged: Path) -> None:
    (judged / "judges_of_check.py").write_text(JUDGE.replace("    answer =", "    print('judging')\n    answer ="))
    assert orjson.loads(run("check", "--judge", "labels.csv", "--json"))["judge"]["metric"] == "brief"


@pytest.mark.long
def test_a_run_says_that_its_judge_was_not_checked_until_it_was(run: Run, judged: Path) -> None:
    note = "the verdict rests on the judge of brief, which was never compared with people"
    assert note in plain(run("run"))
    (folder,) = (each for each in (judged / "runs").iterdir() if each.is_dir())
    assert note in plain(run("show", folder))
    run("check", "--judge", "labels.csv")
    assert "the judge of brief" not in plain(run("show", folder))
    (judged / "labels.csv").write_text(
        (judged / "labels.csv").read_text().replace("pass", "?").replace("fail", "pass").replace("?", "fail")
    )
    run("check", "--judge", "labels.csv")
    assert "agrees poorly with people: kappa -0." in plain(run("show", folder))
    assert len(run("runs").strip().splitlines()) == 2  # the file of checks is not a run


def test_a_metrics_file_is_enough_and_nothing_is_remembered(run: Run, judged: Path) -> None:
    (judged / "judge.json").write_bytes(orjson.dumps({"metrics": [rubric_metric("alone")]}))
    (judged / "promptiter.yaml").unlink()
    assert "alone" in run("check", "--judge", "labels.csv", "--metrics", "judge.json")
    assert not (judged / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--judge", "none.csv"], "'none.csv' cannot be read: No such file or directory; check the path"),
        (["--judge", "labels.csv", "--metric", "breif"], "there is no metric 'breif' (did you mean 'brief'?)"),
        (
            ["--judge", "labels.csv", "--scale", "5"],
            "--scale is '5'; give the lowest and the highest grade, such as 1-5",
        ),
        (["--judge", "labels.csv", "--scale", "1-5"], "the label 'pass' is not known; write a number from 1 to 5"),
        (
            ["--judge", "labels.csv", "--metric", "purchase_date"],
            "'purchase_date' needs references, and the labels have none; add the column `expected` to labels.csv",
        ),
        (["--metric", "brief"], "--metric is for --judge; give the labels as --judge LABELS, too"),
    ],
)
def test_wrong_usage_gets_advice(run: Run, judged: Path, arguments: list[str], problem: str) -> None:
    assert problem in plain(run("check", *arguments, code=2))


def test_with_no_judge_or_several_the_metric_must_be_named(run: Run, judged: Path) -> None:
    for metrics, problem in (
        ([{"metric_name": "exact_match"}], "no metric is a judge; name the metric that judges as --metric NAME"),
        ([rubric_metric("a"), rubric_metric("b")], "there are several judges; name one as --metric NAME, one of a, b"),
    ):
        (judged / "other.json").write_bytes(orjson.dumps({"metrics": metrics}))
        assert problem in plain(run("check", "--judge", "labels.csv", "--metrics", "other.json", code=2))
