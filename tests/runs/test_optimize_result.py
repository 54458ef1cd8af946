from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.runs.optimize_result import OptimizeResult, RoundRecord

RESULT = OptimizeResult(
    status="SUCCEEDED",
    finish_reason="completed",
    stop_reason="timeout",
    algorithm="gepa_reflective",
    baseline_pass_rate=0.25,
    best_pass_rate=0.75,
    pass_rate_improvement=0.5,
    baseline_metric_breakdown={"length": 0.5},
    best_metric_breakdown={"length": 0.75, "style": 0.5},
    metric_thresholds={"length": 1.0, "style": 0.4},
    baseline_prompts={"system": "Be brief.", "skill": "Count."},
    best_prompts={"system": "Be brief.", "skill": "Count twice."},
    total_rounds=2,
    rounds=[RoundRecord(round=1), RoundRecord(round=2, accepted=True, optimized_field_names=["skill"])],
    rounds_accepted=1,
    duration_seconds=12.345,
    finished_at="2026-01-02T03:04:05+00:00",
    verdict="improved",
    run_folder="out/run/r",
)


def test_a_result_is_read_back_from_its_file_whose_keys_are_camel_case(tmp_path: Path) -> None:
    RESULT.dump_to(tmp_path / "result.json")
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["bestPassRate"] == 0.75
    assert document["rounds"][1]["optimizedFieldNames"] == ["skill"]
    assert OptimizeResult.from_file(tmp_path / "result.json") == RESULT


def test_a_file_that_is_not_a_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(SetupError, match="is not an OptimizeResult: status"):
        OptimizeResult.from_file(tmp_path / "result.json")
    with pytest.raises(SetupError, match="cannot be read"):
        OptimizeResult.from_file(tmp_path / "none.json")


def test_the_summary_shows_rates_metrics_and_changed_prompts() -> None:
    assert (
        RESULT.format_summary(output_dir="out", update_source=True)
        == """\
Optimization complete | status=SUCCEEDED | algorithm=gepa_reflective
pass_rate     : 0.2500 -> 0.7500 (+0.5000, improved)
rounds        : 1 accepted / 2 total
duration      : 12.35s
stop_reason   : timeout
verdict       : improved
update_source : true

metrics (baseline -> best, threshold):
  length: 0.5000 -> 0.7500 (threshold 1)
  style: unscored -> 0.5000 (threshold 0.4)

best prompts:
  system: 9 characters, unchanged
  skill: 12 characters, changed

artifacts in out: result.json, summary.txt, run.log, config.snapshot.json, rounds/, baseline_prompts/, best_prompts/
the run itself is in out/run/r
"""
    )


@pytest.mark.parametrize(("gain", "word"), [(0.0, "+0.0000, unchanged"), (-0.25, "-0.2500, worse")])
def test_the_summary_names_a_result_that_is_not_better(gain: float, word: str) -> None:
    found = RESULT.model_copy(update={"pass_rate_improvement": gain})
    assert f"({word})" in found.format_summary(output_dir="out", update_source=False)


def test_the_log_has_one_line_of_fields() -> None:
    assert RESULT.format_log_line() == (
        "2026-01-02T03:04:05+00:00 status=SUCCEEDED algorithm=gepa_reflective baseline=0.25 best=0.75 delta=+0.5 "
        "rounds=2 stop_reason=timeout duration_seconds=12.3\n"
    )
