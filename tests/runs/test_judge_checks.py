from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from promptiter.evaluation.judge_check import JudgeCheck
from promptiter.evaluation.stats.agreement import IntervalEstimate
from promptiter.runs.judge_checks import FILE_NAME, describe_judges, read_checks, remember_check


def check(definition: str, kappa: float | None) -> JudgeCheck:
    return JudgeCheck(
        metric="good",
        answers=40,
        unscored=0,
        judgements=3,
        is_graded=False,
        kappa=None if kappa is None else IntervalEstimate(kappa, kappa - 0.1, kappa + 0.1),
        agreement=0.9,
        leniency=IntervalEstimate(0.0, 0.0, 0.0),
        noise_std=0.0,
        inconsistent=0,
        length_bias=None,
        position=None,
        definition=definition,
    )


def test_checks_are_kept_by_the_definition_of_the_judge(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert read_checks(runs) == {}
    remember_check(runs, check("first", 0.7))
    remember_check(runs, check("second", None))
    remember_check(runs, check("first", 0.8))
    found = read_checks(runs)
    assert {definition: each.kappa for definition, each in found.items()} == {"first": 0.8, "second": None}
    (runs / FILE_NAME).write_text("{")
    assert read_checks(runs) == {}


def test_a_check_with_fewer_labels_does_not_replace_a_larger_one(tmp_path: Path) -> None:
    remember_check(tmp_path, check("judge", 0.7))
    kept = remember_check(tmp_path, replace(check("judge", 0.9), answers=39))
    assert (kept.answers, kept.kappa) == (40, 0.7)
    assert read_checks(tmp_path)["judge"] == kept
    assert remember_check(tmp_path, replace(check("judge", 0.5), answers=41)).kappa == 0.5


def test_judges_that_were_not_checked_or_agree_poorly_are_named(tmp_path: Path) -> None:
    for definition, kappa in (("sound", 0.7), ("poor", 0.21), ("constant", None)):
        remember_check(tmp_path, check(definition, kappa))
    checks = read_checks(tmp_path)
    assert describe_judges({"good": "sound"}, checks) == ()
    unchecked, poor, constant = describe_judges({"a": "changed", "b": "poor", "c": "constant"}, checks)
    assert unchecked.startswith(
        "the verdict rests on the judge of a, which was never compared with people; `promptiter"
    )
    figures = "kappa 0.21 on 40 labels, below 0.4"
    assert poor == f"the verdict rests on the judge of b, which agrees poorly with people: {figures}"
    assert "kappa undefined" in constant
