from __future__ import annotations

from typing import Any

import pytest

from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import ScriptedModel
from promptiter.stages.contracts import Aggregator, Backwarder, BackwardRequest
from promptiter.stages.optimizer import Optimizer
from tests.backprop.llm.test_prompts import BACKWARD_REQUEST

NOTHING = '{"gradients": [], "packets": []}'


def test_the_stages_satisfy_their_protocols() -> None:
    stages: tuple[Backwarder, Aggregator, Optimizer] = LLMBackwarder("m"), LLMAggregator("m"), LLMOptimizer("m")
    assert [getattr(stage, "role", None) for stage in stages] == ["backwarder", "aggregator", "optimizer"]


@pytest.mark.parametrize("stage", [LLMBackwarder, LLMAggregator, LLMOptimizer])
def test_a_limit_below_the_rules_themselves_is_refused(stage: Any) -> None:
    with pytest.raises(SetupError, match=r"max_prompt_tokens of the \w+ is 1,999; .* give at least that"):
        stage("m", max_prompt_tokens=1_999)


async def test_options_user_and_session_reach_the_provider() -> None:
    def session(request: BackwardRequest) -> str:
        return f"session of {request.case_id}"

    model = ScriptedModel([NOTHING])
    stage = LLMBackwarder(
        "m",
        model_options={"temperature": 0, "max_tokens": 9, "metadata": {"team": "a"}},
        user_id=lambda request: f"user of {request.case_id}",
        session_id=session,
        gateway=Gateway(models={"m": model}),
    )
    await stage.backward(BACKWARD_REQUEST)
    assert model.requests[0].options == {
        "temperature": 0,
        "max_tokens": 9,
        "user": "user of c1",
        "metadata": {"team": "a", "session_id": "session of c1"},
    }
    assert stage.model_options["metadata"] == {"team": "a"}


async def test_the_active_gateway_serves_a_stage_that_has_none_of_its_own() -> None:
    model = ScriptedModel([NOTHING])
    with Gateway(models={"m": model}).active():
        await LLMBackwarder("m").backward(BACKWARD_REQUEST)
    assert len(model.requests) == 1
