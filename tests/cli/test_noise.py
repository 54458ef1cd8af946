from __future__ import annotations

import inspect
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
import yaml

from promptiter.api import load_run
from promptiter.cli.commands.noise import noise
from promptiter.evaluation.stats.noise import REPEATS
from promptiter.evaluation.stats.power import pooled_std
from tests.cli.conftest import Run
from tests.marks import take_some
from traces.model import Json


def in_file(desk: Path, **keys: Json) -> None:
    file = desk / "promptiter.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | keys))


@pytest.fixture
def noisy_desk(desk: Path) -> Path:
    """The desk with an offline model that follows nine rules in ten."""
    in_file(desk, models={"simulated": {"compliance": 0.9}})
    return desk


def plain(shown: str) -> str:
    return re.sub(r"\s+", " ", shown)


@pytest.mark.slow
def test_the_report_shows_the_noise_and_what_a_gain_needs(run: Run, noisy_desk: Path) -> None:
    shown = run("noise", stream="out")
    assert shown.startswith("validation  8 cases, 6 repeats of each (offline model): mean score 0.2")
    for expected in (
        r"Run noise standard deviation 0\.2\d\d between repeats of a case; \d of 8 cases scored the same in ",
        r"noisiest: \w+ \([0-9. ]+\), ",
        r"A/A the same profile gained [+-]0\.\d+ in the last 3 repeats over the first 3",
        r"Noise floor 0\.0\d+ with the 6 repeats of a final test,",
        r" 0\.1\d+ with 3; the same profile exceeds it by chance in 5%",
        r"Smallest gain 0\.1\d+ on 8 cases, 0\.\d+ on 16, 0\.0\d+ on 32: detected by the final test with 80% power",
        r"0\.1 [━]+[·]+ +5\d%",
        r"Wanted gain 0\.1 is underpowered: the final test shows it with probability 5\d%",
        r"it needs \d\d cases with 6 to 16 repeats: at most \d{3} case runs, about [\d,]+ tokens, \$0 ",
        r"or \d\d to \d\d repeats of these cases \(final_test\.repeats: \d+\): at most \d{3} case runs, about [\d,]+ ",
        r"New cases a test set of 8 cases like these shows a gain of 0\.\d+; 0\.1 needs \d+ cases",
    ):
        assert re.search(expected, plain(shown)), expected


@pytest.mark.long
def test_a_wanted_gain_that_cannot_be_detected_exits_4(run: Run, noisy_desk: Path) -> None:
    assert "0.1 is underpowered: the final test" in run("noise", "--gain", "0.1", code=4, stream="out")
    shown = plain(run("noise", "--gain", "0.4"))
    assert "Wanted gain 0.4 can be detected: the final test shows it with probability 100%" in shown
    assert "the final test takes at most 256 case runs, about " in shown
    assert "these cases leave room for a gain of 0.7" in plain(run("noise", "--gain", "0.9", code=4, stream="out"))


@pytest.mark.slow
def test_without_noise_a_gain_must_exceed_what_was_not_seen(run: Run, desk: Path) -> None:
    in_file(desk, metrics=[{"metric_name": "rouge", "threshold": 0.5}])
    shown = plain(run("noise", "--gain", "0.12"))
    assert (
        "Run noise none seen: every case scored the same in all 6 repeats; what happens in fewer than about 3 of"
        in shown
    )
    assert "Wanted gain 0.12 can be detected" in shown
    assert "━" not in shown
    assert "Wanted gain 0.01 is underpowered" in plain(run("noise", "--gain", "0.01", code=4, stream="out"))


@pytest.mark.slow
def test_metrics_that_are_all_at_a_bound_say_nothing_about_noise(run: Run, desk: Path) -> None:
    shown = plain(run("noise", "--gain", "0.1"))  # one metric is always met, the other never
    assert "Run noise unknown: each score of each case is either the worst or the best one in all 6 repeats" in shown
    assert "every run meets known_fields: nothing to win there" in shown
    assert "no run meets purchase_date: the prompts do not ask for it" in shown


@pytest.mark.slow
def test_a_desk_that_always_fails_says_nothing_about_noise(run: Run, desk: Path) -> None:
    in_file(desk, metrics=[{"metric_name": "regex", "criterion": {"expected": "never in an answer"}}])
    shown = plain(run("noise", "--gain", "0.1"))
    assert "Run noise unknown: every case has the worst score in all 6 repeats, which says nothing about noise" in shown
    assert "Wanted gain whether 0.1 can be detected is unknown: every case has the worst score" in shown
    assert "no run meets regex:" in shown
    found = orjson.loads(run("noise", "--json"))
    assert (found["noise"]["bound"], found["power"], found["wanted"]) == ("floor", [], None)


@pytest.mark.slow
def test_a_desk_that_cannot_improve_is_reported(run: Run, desk: Path) -> None:
    metrics = [{"metric_name": "length", "threshold": 0.5, "criterion": {"max": 100_000}}]
    in_file(desk, metrics=metrics)
    shown = plain(run("noise", "--gain", "0.1", code=4, stream="out"))
    assert "Smallest gain none: every repeat already has the best score; add harder cases" in shown
    assert "Run noise unknown: every case has the best score in all 6 repeats, which says nothing about noise" in shown
    assert "Headroom ████████ 8 of 8 cases pass in every repeat, 0 in some, 0 in none" in shown
    assert "nothing to win: every run has the best score; add harder cases" in shown


@pytest.mark.slow
def test_json_has_all_scores_and_figures(run: Run, noisy_desk: Path) -> None:
    found = orjson.loads(run("noise", "--json", "--repeats", "4", "--gain", "0.1", code=4, stream="out"))
    assert (found["noise"]["cases"], found["noise"]["repeats"], found["exit_code"]) == (8, 4, 4)
    scores = [case["figures"] for case in found["case_scores"]]
    assert all(len(figures) == 4 for figures in scores)
    assert found["noise"]["std"] == pytest.approx(pooled_std(scores))
    assert found["noise"]["gain"] == pytest.approx(
        sum(after - before for figures in scores for before, after in zip(figures[:2], figures[2:], strict=True)) / 16
    )
    assert [each["cases"] for each in found["noise"]["smallest_gain"]] == [8, 16, 32]
    wanted = found["wanted"]
    assert not wanted["is_within_reach"]
    assert wanted["case_runs_with_cases_needed"] == 2 * 16 * wanted["cases_needed"]
    assert found["measured"]["paid_runs"] == 32
    assert found["measured"]["tokens_per_case_run"] * 32 == pytest.approx(
        found["measured"]["spent"]["input_tokens"] + found["measured"]["spent"]["output_tokens"]
    )
    powers = [point["power"] for point in found["power"]]
    assert powers == sorted(powers)


@pytest.mark.slow
@pytest.mark.parametrize("objective", take_some(["mean_score", "pass_rate", "weighted_loss"], ["weighted_loss"]))
def test_every_objective_is_measured(run: Run, noisy_desk: Path, objective: str) -> None:
    in_file(noisy_desk, objective=objective)
    found = orjson.loads(run("noise", "--json"))
    assert found["noise"]["objective"] == objective
    assert found["noise"]["best"] == (0.0 if objective == "weighted_loss" else 1.0)
    figures = {figure for case in found["case_scores"] for figure in case["figures"]}
    assert (
        figures
        <= {"mean_score": {0.0, 0.5, 1.0}, "pass_rate": {0.0, 1.0}, "weighted_loss": {-1.0, -0.5, 0.0}}[objective]
    )


@pytest.mark.slow
def test_one_seed_gives_one_report_and_a_shared_cache_pays_once(run: Run, noisy_desk: Path) -> None:
    in_file(noisy_desk, cache="cache.sqlite")
    first, again = (orjson.loads(run("noise", "--json", "--seed", "3")) for _ in range(2))
    assert (first["measured"]["paid_runs"], again["measured"]["paid_runs"]) == (48, 0)
    assert first["measured"]["tokens_per_case_run"] == pytest.approx(again["measured"]["tokens_per_case_run"])
    assert {**first, "measured": None} == {**again, "measured": None}
    assert not (noisy_desk / "runs").exists()


@pytest.mark.slow
def test_quiet_prints_one_line(run: Run, desk: Path) -> None:
    assert plain(run("noise", "--quiet")).startswith(
        "Wanted gain whether 0.1 can be detected is unknown: each score of"
    )


@pytest.mark.slow
def test_a_spent_budget_reports_what_was_measured_and_exits_6(run: Run, noisy_desk: Path) -> None:
    in_file(noisy_desk, budget={"max_calls": 200}, evaluation={"concurrency": 1})
    printed = orjson.loads(run("noise", "--json", code=6, stream="out"))
    assert (printed["stop_reason"], printed["noise"]["repeats"]) == ("max_calls", 4)
    assert printed["measured"]["spent"]["calls"] <= 200
    errors = run("noise", code=6)
    assert errors == (
        "error: the budget is spent: raise max_calls, or measure fewer repeats or cases; reporting the 4 repeats that "
        "all cases have\n"
    )
    in_file(noisy_desk, budget={"max_calls": 50})
    assert "every case needs at least 2 repeats to measure noise, and some have 1" in run("noise", code=6)


@pytest.mark.slow
def test_too_many_failures_exit_7_with_the_cause(run: Run, desk: Path) -> None:
    agent = desk / "agent.py"
    agent.write_text(
        agent.read_text() + "\nasync def broken(*_):\n    raise ValueError('no network')\n\n"
        "agent = type('Broken', (), {'describe': agent.describe, 'run': staticmethod(broken)})()\n"
    )
    errors = run("noise", code=7)
    assert "100% of the runs or scores failed, the limit is 25%: ValueError: no network (" in errors
    found = orjson.loads(run("noise", "--json", code=7, stream="out"))
    assert (found["is_reliable"], found["wanted"], found["exit_code"]) == (False, None, 7)


def test_wrong_input_is_reported(run: Run, desk: Path) -> None:
    assert "repeats is 1, but noise is measured between repeats of a case; give 2 or more" in run(
        "noise", "--repeats", "1", code=2
    )
    assert "--gain is 0; give a gain above 0, such as 0.1" in run("noise", "--gain", "0", code=2)
    (desk / "metrics.json").unlink()
    assert "metrics.json: cannot be read" in run("noise", code=2)


def test_the_default_repeats_are_those_of_the_final_test(desk: Path) -> None:
    assert inspect.signature(noise).parameters["repeats"].default == REPEATS
    assert load_run(desk).noise(repeats=2).repeats == 2


@pytest.mark.long
def test_ctrl_c_reports_what_was_measured_so_far(desk: Path) -> None:
    in_file(
        desk,
        models={"simulated": {"compliance": 0.9, "latency_s": 0.05}},
        evaluation={"concurrency": 4},
        cache="cache.jsonl",
    )
    command = [sys.executable, "-m", "promptiter", "noise", "--repeats", "300", "--json"]
    with subprocess.Popen(command, cwd=desk, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            while not (desk / "cache.jsonl").exists() or (desk / "cache.jsonl").read_bytes().count(b"\n") < 8 * 6 * 3:
                assert running.poll() is None
                time.sleep(0.02)
            running.send_signal(signal.SIGINT)
            shown, errors = running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == 130
    assert "Ctrl-C: finishing the work in progress; a second one stops at once\n" in errors
    found = orjson.loads(shown)
    assert found["stop_reason"] == "user_stop"
    assert found["noise"]["repeats"] >= 2
    assert f"stopped on request; reporting the {found['noise']['repeats']} repeats that all cases have" in errors
