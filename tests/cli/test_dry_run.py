from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
import yaml

from promptiter.api import load_run
from promptiter.cli.output import SteadyConsole
from promptiter.runs.changed_inputs import find_changed_inputs
from promptiter.runs.header import build_header
from tests.cli.conftest import Run

NOW = datetime(2026, 11, 15, tzinfo=UTC)
PAID = 548
"""Calls that the run of the starter takes."""


def add(desk: Path, more: str) -> None:
    file = desk / "promptiter.yaml"
    file.write_text(f"{file.read_text()}\n{more}\n")


@pytest.mark.slow
def test_it_shows_a_forecast_and_writes_nothing(run: Run, desk: Path) -> None:
    before = sorted(desk.rglob("*"))
    shown = run("run", "--dry-run", stream="err")
    assert [path for path in sorted(desk.rglob("*")) if "__pycache__" not in path.parts] == before
    lines = [line.rstrip() for line in shown.splitlines()]
    assert "Forecast  no matching earlier run: rule-of-thumb figures" in lines
    assert any(re.fullmatch(r"baseline +48 +[\d.k]+ \([\d.k]+ to [\d.k]+\) +\$0 +.* s.*", line) for line in lines)
    assert "…" not in shown, "the tables fit into 80 columns"
    assert any(re.match(r"all +[\d,]+ \(", line) for line in lines)
    assert any(line.startswith("reception ") for line in lines)
    assert "Budget  no cap" in lines
    assert any("an offline model answers" in line for line in lines)


def test_a_figure_is_never_cut_off(run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = run("run", "--dry-run", stream="err", width=50)
    assert "…" not in narrow
    monkeypatch.setenv("COLUMNS", "")
    assert SteadyConsole().width == 120, "in a pipe"


@pytest.mark.slow
def test_the_next_forecast_is_based_on_the_run_and_the_summary_compares(run: Run, desk: Path) -> None:
    summary = re.sub(r"\s+", " ", run("run", "--costs"))
    assert re.search(
        rf"Compared with the forecast {PAID} calls, expected [\d,]+ \([\d,]+ to [\d,]+\); .* s, expected .* s \(",
        summary,
    )
    assert "stage calls expected tokens expected baseline 48 48 5,582 " in summary
    assert re.search(r" final_test 192 [\d,]+ \([\d,]+ to [\d,]+\) ", summary)
    [folder] = (desk / "runs").glob("[!.]*")
    kept = (folder / "forecast.json").read_bytes()
    shown = run("run", "--dry-run", stream="err")
    assert f"Forecast  based on 1 earlier run: {folder.name}" in shown
    assert "…" not in shown, "the tables fit into 80 columns"
    assert f"forecast {PAID} calls" in re.sub(r"\s+", " ", run("resume", "--costs"))
    assert (folder / "forecast.json").read_bytes() == kept


def test_json_has_the_configuration_and_the_forecast(run: Run, desk: Path) -> None:
    found = orjson.loads(run("run", "--dry-run", "--json", "--max-rounds", "1", "--max-usd", "2"))
    assert found["configuration"]["max_rounds"] == 1
    assert found["configuration"]["budget"]["max_usd"] == 2
    assert found["configuration"]["evaluation"]["repeats"] == 1
    forecast = found["forecast"]
    assert forecast["budget"] == ["max_usd $2 allows 1 of 1 round"]
    assert forecast["stages"].keys() >= {"baseline", "train", "rerun", "validation", "final_test"}
    assert forecast["total"]["calls"].keys() == {"low", "typical", "high"}
    assert not (desk / "runs").exists()


def test_the_configuration_can_be_saved_and_is_the_same_run(run: Run, desk: Path) -> None:
    add(desk, "budget: {max_calls: 500}\nloss_placements: [{metric: purchase_date, node_id: filing}]\nseed: 3")
    shown = run("run", "--dry-run", "--max-rounds", "2")
    saved = desk / "elsewhere" / "saved.yaml"
    saved.parent.mkdir()
    saved.write_text(shown)
    first, second = load_run(desk, settings={"max_rounds": 2}), load_run(saved)
    headers = [build_header(each.engine, each.checked, run_id="r", created_at=NOW) for each in (first, second)]
    assert find_changed_inputs(*headers) == []
    assert second.config.runs == first.config.runs
    assert second.config.budget == first.config.budget


@pytest.mark.slow
def test_no_secret_is_shown(run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_KEY", "a-key-from-outside")
    file = desk / "promptiter.yaml"
    settings = "openai/house: {api_key: '${HOUSE_KEY}', headers: {X-Any: written-out-value}, api_base: http://h}"
    other = "openai/other: {api_key: written-out-key}"
    file.write_text(file.read_text().replace("models:\n", f"models:\n  {settings}\n  {other}\n", 1))
    for shown in (run("run", "--dry-run"), run("run", "--dry-run", "--json")):
        assert "${HOUSE_KEY}" in shown
        assert "***" not in shown
        for secret in ("a-key-from-outside", "written-out-value", "written-out-key"):
            assert secret not in shown
    shown = run("run", "--dry-run")
    configured = yaml.safe_load(shown)
    assert configured["models"]["openai/house"] == {"api_key": "${HOUSE_KEY}", "headers": {}, "api_base": "http://h"}
    assert configured["models"]["openai/other"] == {}
    left_out = "models.openai/house.headers.X-Any, models.openai/other.api_key"
    assert shown.startswith(f"# Secrets are left out; write them as ${{VARIABLE}}: {left_out}\n")
    (desk / "again.yaml").write_text(shown)
    assert run("run", "again.yaml", "--max-rounds", "0", "--quiet").startswith("support_desk: Baseline")


@pytest.mark.slow
def test_unknown_prices_and_caps_are_shown(run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-for-the-dry-run")
    agent = desk / "agent.py"
    agent.write_text(agent.read_text().replace('MODEL = "simulated"', 'MODEL = "openai/house-model"'))
    add(desk, "budget: {max_calls: 50}")
    shown = run("run", "--dry-run", stream="err")
    assert re.search(r"baseline +48 .* unknown ", shown)
    assert "Price   unknown: openai/house-model" in shown
    assert "max_calls 50 allows only the baseline" in shown


def test_problems_are_reported(run: Run, desk: Path) -> None:
    (desk / "metrics.json").unlink()
    assert "metrics.json: cannot be read" in run("run", "--dry-run", code=2)
    assert "`promptiter init` writes one" in run("run", "gone.yaml", "--dry-run", code=2)


@pytest.mark.slow
def test_the_result_as_json_has_the_forecast(run: Run, desk: Path) -> None:
    found = orjson.loads(run("run", "--json"))
    assert found["forecast"]["calls"]["low"] < PAID < found["forecast"]["calls"]["high"]
    by_stage = {each["stage"]: each for each in found["stages"]}
    assert list(by_stage) == ["baseline", "train", "rerun", "validation", "ablation", "final_test"]
    assert by_stage["baseline"]["actual"] == {"calls": 48, "tokens": 5_582, "cost_usd": 0.0}
    assert by_stage["final_test"]["expected"]["calls"].keys() == {"low", "typical", "high"}
    assert sum(each["actual"]["calls"] for each in found["stages"]) == PAID
    for stage, each in by_stage.items():
        for figure in ("calls", "tokens"):
            expected = each["expected"][figure]
            assert expected["low"] <= each["actual"][figure] <= expected["high"], (stage, figure)


def test_a_run_that_cannot_be_forecast_still_runs(
    desk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def outline(_: object) -> object:
        raise LookupError("my own search has no outline yet")

    monkeypatch.setattr("promptiter.search.rounds.BackpropRounds.outline", outline)
    directory = load_run(desk).begin()
    assert (directory.path / "run.json").exists()
    assert not (directory.path / "forecast.json").exists()
    assert "the run starts without a forecast: LookupError" in caplog.text
