"""evaluate, check and describe take promptiter.yaml as `run` does."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    "subject", [(), (".",), ("promptiter.yaml",), ("agent:agent",), ("agent:agent", "--config", ".")]
)
def test_an_agent_is_evaluated_with_its_configuration(run: Run, desk: Path, subject: tuple[str, ...]) -> None:
    assert desk.exists()
    found = orjson.loads(run("evaluate", *subject, "--json", code=1, stream="out"))
    assert found["eval_set_id"] == "validation"
    assert len({row["case_id"] for row in found["rows"]}) == 8


@pytest.mark.slow
def test_each_set_of_a_configuration_can_be_evaluated(run: Run, desk: Path) -> None:
    found = orjson.loads(run("evaluate", "-e", "train", "--json", code=1, stream="out"))
    assert found["eval_set_id"] == "train"
    assert "test: is missing; name its eval set, or pass --eval-set FILE" in run("evaluate", "-e", "test", code=2)
    file = next((desk / "data").glob("train*"))
    assert "cases pass" in run("evaluate", "-e", file, code=1, stream="out")


@pytest.mark.slow
def test_models_of_the_configuration_answer(run: Run, desk: Path) -> None:
    (desk / "models_of_the_desk.py").write_text("def clerk(messages):\n    return 'the clerk'\n")
    agent, config = desk / "agent.py", desk / "promptiter.yaml"
    agent.write_text(agent.read_text().replace('MODEL = "simulated"', 'MODEL = "clerk"'))
    config.write_text(config.read_text().replace("models:\n", "models:\n  clerk: {model: models_of_the_desk:clerk}\n"))
    found = orjson.loads(run("evaluate", "agent:agent", "--json", code=1, stream="out"))
    assert {row["output"] for row in found["rows"]} == {"the clerk"}
    assert "12 cases that never pass" in run("check", ".", "--agent", "agent:agent", "--repeats", "2", stream="out")


def test_budgets_of_the_configuration_hold(run: Run, desk: Path) -> None:
    with (desk / "promptiter.yaml").open("a") as file:
        file.write("\nbudget: {max_calls: 0}\n")
    assert "budget has ended" in run("evaluate", "agent:agent", code=6)


@pytest.mark.slow
def test_options_win_over_the_configuration(run: Run, desk: Path) -> None:
    assert desk.exists()
    found = orjson.loads(run("evaluate", "--repeats", "3", "--json", code=1, stream="out"))
    assert {row["repeat"] for row in found["rows"]} == {0, 1, 2}


@pytest.mark.slow
def test_a_missing_key_is_one_line(run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)
    agent = desk / "agent.py"
    agent.write_text(agent.read_text().replace('MODEL = "simulated"', 'MODEL = "gpt-4o-mini"'))
    line = "gpt-4o-mini needs OPENAI_API_KEY; set it, or models.gpt-4o-mini.api_key in promptiter.yaml"
    for command in (["evaluate"], ["run"], ["noise"], ["check", "--agent", "agent:agent"]):
        assert run(*command, code=2).count(line) == 1, command


@pytest.mark.slow
def test_check_takes_the_sets_and_the_metrics_of_a_configuration(run: Run, desk: Path) -> None:
    assert desk.exists()
    shown_as_json = run("check", "--json")
    sources = [Path(each["source"]).stem for each in orjson.loads(shown_as_json)["eval_sets"]]
    assert sources == ["train", "validation"]
    (desk / "promptiter.yaml").rename(desk / "base.yaml")
    assert run("check", "base.yaml", "--json") == shown_as_json
    (desk / "base.yaml").rename(desk / "promptiter.yaml")
    shown = run("check", ".", "--agent", "agent:agent", "--repeats", "2")
    assert "(offline model)" in shown


def test_describe_takes_a_configuration(run: Run, desk: Path) -> None:
    assert desk.exists()
    assert run("describe") == run("describe", "agent:agent") == run("describe", ".")


def test_two_configurations_are_refused(run: Run, desk: Path) -> None:
    assert desk.exists()
    assert "both name a configuration; give one of them" in run("evaluate", ".", "--config", ".", code=2)
