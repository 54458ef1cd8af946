"""The files of AgentOptimizer's own examples run as they are, with a model server on loopback as their model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from promptiter import TargetPrompt, optimize
from promptiter.evaluation.data.evalset import load_eval_set
from tests.worlds.model_server import LoopbackServer, run_server

DATA = Path(__file__).parent / "data"
RUBRICS = ("numeric_correct", "reasoning_clear", "units_present")
RULE = "Write the answer after 答案："


def answer(body: dict[str, Any]) -> str:
    """The model behind the variables: a judge that passes answers with a reason, and a writer that knows the rule."""
    system, user = (str(message["content"]) for message in body["messages"][:2])
    if system.startswith("You improve one component"):
        return json.dumps({"reason": "answers lack their mark", "value": f"You solve tasks. {RULE}."})
    verdict = {"reason": "as the reference", "passed": "I think" not in user}
    return json.dumps({"verdicts": [{"id": each, **verdict} for each in RUBRICS]})


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with run_server(LoopbackServer(answer)) as running:
        yield running


@pytest.fixture
def variables(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRPC_AGENT_MODEL_NAME", "loopback")
    monkeypatch.setenv("TRPC_AGENT_BASE_URL", server.url)
    monkeypatch.setenv("TRPC_AGENT_API_KEY", "sk-loopback-key")


class KnowsAnswers:
    """An agent that knows the answers to all cases, and marks them if one of its prompts says so."""

    def __init__(self, data: Path, prompts: dict[str, Path]) -> None:
        sets = (load_eval_set(data / name) for name in ("train.evalset.json", "val.evalset.json"))
        turns = (turn for each in sets for case in each.cases for turn in case.turns)
        self.known = {turn.user: str(turn.expected).removeprefix("答案：") for turn in turns}
        self.prompts = prompts

    async def call_agent(self, query: str) -> str:
        texts = "".join(file.read_text() for file in self.prompts.values())
        return f"答案：{self.known[query]}" if RULE in texts else f"I think that it is {self.known[query]}"


@pytest.mark.slow
@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(
    ("name", "prompts"),
    [("trpc_math_rubric", ["system_prompt", "skill"]), ("trpc_multi_agent_pipeline", ["router", "worker", "summary"])],
)
async def test_the_files_run_unchanged(name: str, prompts: list[str], server: LoopbackServer, tmp_path: Path) -> None:
    files = {each: tmp_path / f"{each}.md" for each in prompts}
    target = TargetPrompt()
    for each, file in files.items():
        file.write_text(f"You are the {each}.")
        target.add_path(each, file)
    config = tmp_path / "optimizer.json"
    config.write_bytes((DATA / name / "optimizer.json").read_bytes())
    calls = len(server.billed)
    result = await optimize(
        config_path=config,
        call_agent=KnowsAnswers(DATA / name, files).call_agent,
        target_prompt=target,
        train_dataset_path=DATA / name / "train.evalset.json",
        validation_dataset_path=DATA / name / "val.evalset.json",
        output_dir=tmp_path / "out",
        verbose=0,
    )
    assert (result.status, result.error_message) == ("SUCCEEDED", "")
    assert (result.baseline_pass_rate, result.best_pass_rate) == (0.0, 1.0)
    assert (result.algorithm, result.stop_reason) == ("gepa_reflective", "required_metrics_passing")
    assert result.total_metric_calls <= 60
    assert result.total_reflection_lm_calls == sum(each.reflection_lm_calls for each in result.rounds) > 0
    assert result.total_token_usage["total"] > 0
    assert len(server.billed) > calls
    assert any(RULE in text for text in result.best_prompts.values())
    for file in (tmp_path / "out").rglob("*"):
        assert file.is_dir() or b"sk-loopback-key" not in file.read_bytes(), file
