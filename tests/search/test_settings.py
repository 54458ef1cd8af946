"""Models and parameters as targets, in backprop rounds and in GEPA: alone, and together with texts."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from promptiter.agents.function import chain
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.run import RunFailedError
from promptiter.engine.session import Search
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.policies.stopping import Patience, TargetScore
from promptiter.runlog.results import RunResult
from promptiter.search.descent.numeric_search import OptunaSearch
from promptiter.search.descent.search import CoordinateDescent
from promptiter.search.few_shot import FewShotSearch
from promptiter.search.gepa import GepaSearch
from promptiter.search.rounds import BackpropRounds
from tests.worlds.settings_world import (
    INSTRUCTION,
    MODEL,
    STRONG,
    TEMPERATURE,
    WEAK,
    build_agent,
    build_evaluator,
    eval_set,
)


def request(*targets: str, **changes: Any) -> RunRequest:
    values: dict[str, Any] = {
        "train": eval_set("train"),
        "validation": eval_set("validation"),
        "final_test": None,
        "stop": TargetScore(1.0) | Patience(8),
        "max_rounds": 12,
        "targets": targets,
    }
    return RunRequest(**(values | changes))


def adopted(result: RunResult) -> dict[str, Any]:
    return dict(result.accepted_profile.overrides)


async def test_backprop_tries_settings_once_the_text_does_not_help() -> None:
    engine = Engine(build_agent(), build_evaluator(), search=BackpropRounds())
    result = await engine.run(request(INSTRUCTION, MODEL))
    assert adopted(result) == {MODEL: STRONG}
    patch = result.rounds[-1].candidates[-1].patches.patches[-1]
    assert patch.reason == "it costs 4 times what 'weak' costs"


async def test_backprop_moves_a_number_step_by_step() -> None:
    engine = Engine(build_agent(model=STRONG, temperature=0.7), build_evaluator(), search=BackpropRounds())
    result = await engine.run(request(INSTRUCTION, TEMPERATURE))
    assert adopted(result) == {TEMPERATURE: pytest.approx(0.45)}


class Tuner:
    """A model that sets each component to what it is told; `prompts` are those it was shown."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.prompts: list[str] = []

    def __call__(self, asked: ModelRequest) -> ModelReply:
        prompt = asked.messages[1].content
        self.prompts.append(prompt)
        [value] = [value for name, value in self.values.items() if f"{name}\n" in prompt.partition("# Case")[0]]
        return ModelReply(text=orjson.dumps({"reason": "told", "value": value}).decode())


async def test_gepa_changes_a_text_a_number_and_a_model_in_one_move() -> None:
    tuner = Tuner({INSTRUCTION: "Answer. Be careful.", MODEL: STRONG, TEMPERATURE: 0.1})
    evaluator = build_evaluator(needs_care=True, editor=ScriptedModel(tuner))
    search = GepaSearch(reflection_model="editor", module_selector="all")
    engine = Engine(build_agent(temperature=0.9), evaluator, search=search)
    result = await engine.run(request(INSTRUCTION, MODEL, TEMPERATURE))
    assert adopted(result) == {INSTRUCTION: "Answer. Be careful.", MODEL: STRONG, TEMPERATURE: 0.1}
    shown = next(each for each in tuner.prompts if f"{MODEL}\n" in each.partition("# Case")[0])
    assert "weak: 1, 1\nstrong: 4, 4" in shown


async def test_gepa_refuses_a_setting_outside_its_limits() -> None:
    evaluator = build_evaluator(editor=ScriptedModel(Tuner({TEMPERATURE: 7})))
    engine = Engine(build_agent(), evaluator, search=GepaSearch(reflection_model="editor"))
    with pytest.raises(RunFailedError) as failed:
        await engine.run(request(TEMPERATURE, max_rounds=2, stop=TargetScore(1.0)))
    assert "7 is not between 0.0 and 1.0" in failed.value.result.problems[0]


async def test_gepa_needs_something_to_change() -> None:
    agent = chain("clerk", ModelNode(name="clerk", instruction="Answer.", model=WEAK))
    alone = Engine(agent, build_evaluator(), search=GepaSearch())
    with pytest.raises(RunFailedError, match=r"clerk#model has no choices; give the node models=\(...\)"):
        await alone.run(request(MODEL))


@pytest.mark.parametrize(
    ("search", "targets"),
    [
        (BackpropRounds(), (INSTRUCTION,)),
        (OptunaSearch(), (MODEL, TEMPERATURE)),
        (CoordinateDescent(), (INSTRUCTION, MODEL, TEMPERATURE)),
        (CoordinateDescent(phases=("textual",)), (INSTRUCTION,)),
        (FewShotSearch(), ("clerk#examples",)),
    ],
)
def test_without_targets_a_search_changes_what_it_is_for(search: Search, targets: tuple[str, ...]) -> None:
    asked = RunRequest(train=eval_set("train"), validation=eval_set("validation"))
    assert Engine(build_agent(), build_evaluator(), search=search).check(asked).targets == targets
