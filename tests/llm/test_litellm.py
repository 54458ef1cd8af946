"""Through litellm against a real HTTP server on loopback, as a user's calls go."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from pydantic import TypeAdapter

from promptiter.errors import (
    AccessDeniedError,
    BadRequestError,
    BudgetEndedError,
    ModelNotFoundError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.ledger import Spending
from promptiter.llm.litellm import LiteLLMModel, price_per_token_usd
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest, ToolSpec
from promptiter.llm.models import Function, Model
from promptiter.llm.rate import RateLimit
from promptiter.llm.retries import Retries
from promptiter.llm.structured import ask_for
from tests.worlds.model_server import CONTENT_FAULTS, HTTP_FAULTS, LoopbackServer, run_server

pytestmark = pytest.mark.slow

MODEL = "openai/local"


def answer(body: dict[str, Any]) -> str:
    asked = body["messages"][0]["content"]
    return json.dumps({"verdict": asked}) if body.get("response_format") else f"answer to {asked}"


def gateway(server: LoopbackServer, **options: Any) -> Gateway:
    model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=10)
    retries = Retries(attempts=8, first_delay_s=0.01, max_delay_s=0.05)
    return Gateway(models={MODEL: model}, retries=retries, **options)


def request(number: int) -> ModelRequest:
    return ModelRequest(model=MODEL, messages=(Message("user", f"question {number}"),))


async def ask_all(door: Gateway, count: int) -> list[tuple[str, dict[str, str]]]:
    async def one(number: int) -> tuple[str, dict[str, str]]:
        site = CallSite(case_id=str(number))
        plain = await door.ask(request(number), site)
        judge = CallSite(role="judge")
        return plain.text, await ask_for(TypeAdapter(dict[str, str]), request(number), judge, door)

    return await asyncio.gather(*(one(number) for number in range(count)))


async def test_faults_in_a_third_of_the_calls_change_no_answer() -> None:
    with run_server(LoopbackServer(answer)) as server:
        expected = await ask_all(gateway(server), 40)
    with run_server(LoopbackServer(answer, fault_rate=0.3, seed=7)) as server:
        assert await ask_all(gateway(server), 40) == expected
        assert set(server.faults) == set(HTTP_FAULTS + CONTENT_FAULTS)


class PatientClock:
    """A clock that stops while a request is in flight, so that a slow machine does not delay its arrival."""

    def __init__(self, model: Model) -> None:
        self.now = 0.0
        self._model = model
        self._in_flight = 0
        self._is_idle = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        await self._is_idle.wait()
        self.now = max(self.now, until)

    async def __call__(self, request: ModelRequest, *, repeat: int = 0) -> ModelReply:
        self._in_flight += 1
        self._is_idle.clear()
        try:
            return await self._model(request, repeat=repeat)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._is_idle.set()


async def test_no_request_is_sent_above_the_rate_limit() -> None:
    arrivals: list[float] = []

    def arrive(body: dict[str, Any]) -> str:
        arrivals.append(clock.now)
        return answer(body)

    with run_server(LoopbackServer(arrive, fault_rate=0.3, seed=1)) as server:
        clock = PatientClock(LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=10))
        rate = RateLimit(requests_per_minute=20, clock=lambda: clock.now, sleep=clock.sleep)
        retries = Retries(attempts=8, first_delay_s=0.01, max_delay_s=0.05)
        door = Gateway(models={MODEL: clock}, retries=retries, rates={MODEL: rate})
        await asyncio.gather(*(door.ask(request(number), CallSite(case_id=str(number))) for number in range(40)))
    assert len(arrivals) > 40
    for start in arrivals:
        assert sum(start <= other < start + 60 for other in arrivals) <= 20


async def test_a_rejected_key_is_reported_at_once() -> None:
    def refuse(body: dict[str, Any]) -> str:
        raise AssertionError(body)

    with run_server(LoopbackServer(refuse)) as server:
        model = LiteLLMModel(api_base=f"{server.url}/nowhere", api_key="sk-canary-123456")
        with pytest.raises(ModelNotFoundError, match="; check the name of the model and the address") as caught:
            await model(request(1), repeat=0)
    assert "sk-canary" not in str(caught.value)
    assert "sk-canary" not in repr(model)


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.endswith(("_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.usefixtures("no_keys")
@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("gpt-4o-mini", "OPENAI_API_KEY"),
        ("openai/house-model", "OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("gemini/gemini-2.5-flash", "GOOGLE_API_KEY or GEMINI_API_KEY"),
        ("mistral/mistral-small", "MISTRAL_API_KEY"),
    ],
)
def test_a_missing_key_is_found_without_a_call(name: str, variable: str) -> None:
    line = f"{name} needs {variable}; set it, or models.{name}.api_key in promptiter.yaml"
    assert Gateway().find_setup_problems([name, name]) == [line]


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("gpt-4o-mini", "OPENAI_API_KEY"),
        ("gpt-4o-mini", "OPENAI_ADMIN_KEY"),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_AUTH_TOKEN"),
        ("gemini/gemini-2.5-flash", "GEMINI_API_KEY"),
        ("together_ai/any", "TOGETHER_AI_TOKEN"),
        ("ollama/llama3:8b", "UNRELATED"),
        ("azure/deployment", "UNRELATED"),
        ("bedrock/anthropic.claude-v2", "UNRELATED"),
        ("vertex_ai/gemini-2.5-flash", "UNRELATED"),
        ("hosted_vllm/any", "UNRELATED"),
        ("huggingface/any/model", "UNRELATED"),
    ],
)
def test_a_model_with_possible_credentials_is_not_refused(
    name: str, variable: str, no_keys: pytest.MonkeyPatch
) -> None:
    no_keys.setenv(variable, "value")
    assert Gateway().find_setup_problems([name]) == []


@pytest.mark.usefixtures("no_keys")
def test_a_model_with_settings_of_its_own_is_not_refused() -> None:
    own: dict[str, LiteLLMModel | Function] = {
        "openai/a": LiteLLMModel(api_base="http://house.invalid"),
        "openai/b": LiteLLMModel(api_key="sk-own"),
        "openai/c": LiteLLMModel(headers={"X-Auth": "own"}),
        "d": lambda _: "an own function",
    }
    assert Gateway(models=own).find_setup_problems([*own, "simulated"]) == []


def test_a_model_without_a_provider_is_described_in_one_line() -> None:
    misspelled, bare = Gateway().find_setup_problems(["tiny", "gpt-4o-mni"])
    assert misspelled.startswith("gpt-4o-mni names no provider that litellm knows (did you mean 'gpt-4o-mini'?); ")
    assert bare == (
        "tiny names no provider that litellm knows; write provider/model, such as openai/tiny, or set "
        "models.tiny.api_base in promptiter.yaml to the address of your own server"
    )
    own = Gateway(models={"clerk_of_court": lambda _: "an own function"})
    for name, meant in {"simulted": "simulated", "clark_of_court": "clerk_of_court"}.items():
        [problem] = own.find_setup_problems([name])
        assert problem.startswith(f"{name} names no provider that litellm knows (did you mean '{meant}'?); ")


@pytest.mark.parametrize("name", ["local", "Qwen/qwen3-8b"])
async def test_a_model_of_your_own_server_needs_no_provider(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def note_model(body: dict[str, Any]) -> str:
        asked.append(body["model"])
        return "hello"

    message = ModelRequest(model=name, messages=(Message("user", "hello"),))
    with run_server(LoopbackServer(note_model)) as server:
        own = Gateway(models={name: LiteLLMModel(api_base=server.url, api_key="sk-loopback")})
        assert own.find_setup_problems([name]) == []
        await own.ask(message, CallSite())
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")
        assert Gateway().find_setup_problems([name]) == []
        await Gateway().ask(message, CallSite())
    assert asked == [name, name]


async def test_a_model_without_a_provider_is_not_found() -> None:
    with pytest.raises(ModelNotFoundError, match="tiny names no provider"):
        await Gateway().ask(ModelRequest(model="tiny", messages=(Message("user", "hello"),)), CallSite())


@pytest.mark.usefixtures("no_keys")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt-4o-mini", AccessDeniedError),
        ("anthropic/claude-sonnet-4-5", AccessDeniedError),
        ("gemini/gemini-2.5-flash", AccessDeniedError),
        ("tiny", BadRequestError),
    ],
)
async def test_a_call_that_cannot_succeed_is_made_once(name: str, kind: type[Exception]) -> None:
    """None of them gets as far as a connection: litellm itself refuses a call without a key."""
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    [line] = Gateway().find_setup_problems([name])
    with pytest.raises(kind) as caught:
        await Gateway(sleep=pause).ask(replace(request(1), model=name), CallSite(case_id="c"))
    assert (str(caught.value), paused) == (line, [])


def test_prices_come_from_litellms_own_list_without_a_network() -> None:
    found = price_per_token_usd("gpt-4o-mini")
    assert found is not None
    assert 0 < found[0] < found[1]
    assert price_per_token_usd("openai/unheard-of") is None


async def test_tools_are_offered_to_the_server() -> None:
    offered: list[Any] = []

    def answer_with(body: dict[str, Any]) -> str:
        offered.extend(body["tools"])
        return "done"

    tool = ToolSpec("look_up", "Look an order up.", {"type": "object", "properties": {"id": {"type": "string"}}})
    with run_server(LoopbackServer(answer_with)) as server:
        asked = replace(request(1), tools=(tool,))
        reply = await gateway(server).ask(asked, CallSite(case_id="c"))
    assert reply.text == "done"
    assert [each["function"]["name"] for each in offered] == ["look_up"]


FIRST_CALL = """
import asyncio, sys
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.prices import Price, Prices

class Watched(LiteLLMModel):
    async def __call__(self, request, *, repeat):
        print({"litellm", "openai.resources.chat"} <= set(sys.modules))
        return ModelReply(text="x")

price = Price(input_usd_per_million=1.0, output_usd_per_million=1.0)
door = Gateway(models={"openai/m": Watched(api_key="k")}, prices=Prices({"openai/m": price}), budget=Budget(max_usd=1))
print("litellm" in sys.modules)
asyncio.run(door.ask(ModelRequest(model="openai/m", messages=(Message("user", "hi"),)), CallSite()))
"""


CANCELLED = """
import asyncio, gc
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import Message, ModelRequest

async def main():
    model = LiteLLMModel(api_base="http://127.0.0.1:9/v1", api_key="k")
    for _ in range(5):
        call = asyncio.ensure_future(model(ModelRequest(model="openai/m", messages=(Message("user", "hi"),)), repeat=0))
        await asyncio.sleep(0)  # litellm prepares the call in a thread
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(0.2)
    gc.collect()

asyncio.run(main())
"""


CANCELLED_CALL = """
class OpenAIChatCompletion:
    async def acompletion(self): ...

OpenAIChatCompletion().acompletion()
"""


def run_process(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def new_process() -> subprocess.CompletedProcess[str]:
    """A process with its first call, and cancelled calls. To import litellm takes seconds, so it is the only one."""
    return run_process(FIRST_CALL + CANCELLED + CANCELLED_CALL)


def test_litellm_is_imported_before_the_time_limit_of_the_first_call_starts(
    new_process: subprocess.CompletedProcess[str],
) -> None:
    """Otherwise the import could use up the limit, and an attempt that was never sent would count as lost."""
    assert new_process.stdout.split() == ["False", "True"]


def test_a_call_that_is_cancelled_while_litellm_prepares_it_prints_no_warning(
    new_process: subprocess.CompletedProcess[str],
) -> None:
    assert run_process(CANCELLED_CALL).stderr.count("acompletion' was never awaited") == 1
    assert new_process.stderr == ""


async def test_a_server_that_reports_no_usage_is_charged_at_the_bound_of_each_call() -> None:
    budget = Budget(max_tokens=20_000)
    with run_server(LoopbackServer(answer, reports_usage=False)) as server:
        door = gateway(server, budget=budget, max_output_tokens=1_000)
        calls = (door.ask(request(number), CallSite()) for number in range(40))
        ends = await asyncio.gather(*calls, return_exceptions=True)
    assert any(isinstance(end, BudgetEndedError) for end in ends)
    total = door.ledger.snapshot().total
    assert len(server.billed) == total.calls == total.uncounted_calls == budget.state.calls
    assert 10 < total.calls < 20
    assert 0 < sum(map(sum, server.billed)) < total.possible_tokens == budget.state.tokens <= 20_000


@pytest.mark.parametrize("usage", [{"prompt_tokens": 2}, {"prompt_tokens": 2, "completion_tokens": None}])
async def test_an_answer_without_a_count_of_its_tokens_is_charged_at_its_bound(usage: dict[str, Any]) -> None:
    budget = Budget()
    with run_server(LoopbackServer(answer, usage=usage)) as server:
        door = gateway(server, budget=budget, max_output_tokens=1_000)
        await door.ask(request(1), CallSite())
    total = door.ledger.snapshot().total
    assert (total.uncounted_calls, total.input_tokens, total.output_tokens) == (1, 2, 0)
    assert budget.state.tokens == total.tokens + total.possible_tokens > 1_000


@pytest.mark.parametrize(
    ("fault", "is_billed"),
    [("rate_limited", False), ("server_error", False), ("cut", True), ("malformed_body", True), ("slow", True)],
)
async def test_faults_are_billed_unless_the_server_refused_the_call(fault: str, is_billed: bool) -> None:
    class Failing(LoopbackServer):
        def _choose_fault(self, body: dict[str, Any]) -> str | None:  # noqa: ARG002
            return fault if len(self.arrivals) == 1 else None

    with run_server(Failing(answer, slow_s=5.0, retry_after_s=0.0)) as server:
        model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=1)
        door = Gateway(models={MODEL: model}, retries=Retries(attempts=2, first_delay_s=0.01))
        await door.ask(request(1), CallSite())
    total = door.ledger.snapshot().total
    assert (total.calls, total.lost_calls, total.attempts) == (1, int(is_billed), 2)
    assert len(server.billed) == 1 + is_billed


@pytest.mark.parametrize(
    ("status", "is_billed"),
    [(408, True), (502, True), (504, True), (520, True), (524, True), (429, False), (500, False), (503, False)],
)
async def test_what_a_proxy_answers_for_a_server_that_may_have_worked_is_billed(status: int, is_billed: bool) -> None:
    class Proxy(LoopbackServer):
        async def handle(self, request: Any) -> Any:
            reply = await super().handle(request)
            return reply if len(self.arrivals) > 1 else web.json_response({"error": {"message": "oops"}}, status=status)

    with run_server(Proxy(answer)) as server:
        door = gateway(server)
        await door.ask(request(1), CallSite())
    total = door.ledger.snapshot().total
    assert (total.calls, total.lost_calls, total.attempts) == (1, int(is_billed), 2)


async def test_a_server_that_cannot_be_reached_is_named_and_bills_nothing() -> None:
    model = LiteLLMModel(api_base="http://127.0.0.1:9/v1", api_key="sk-loopback", timeout_s=10)
    door = Gateway(models={MODEL: model}, retries=Retries(attempts=2, first_delay_s=0.01))
    with pytest.raises(
        ModelUnavailableError, match=r"Connection error\. \(no connection to http://127\.0\.0\.1:9/v1\)"
    ):
        await door.ask(request(1), CallSite())
    assert door.ledger.snapshot().total == Spending()


class Witness(LoopbackServer):
    """A server that keeps the headers of the last request."""

    headers: dict[str, str]

    async def handle(self, request: Any) -> Any:
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        return await super().handle(request)


async def test_options_that_litellm_takes_too_add_to_the_settings_of_the_model() -> None:
    with run_server(Witness(answer)) as server:
        assert isinstance(server, Witness)
        model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", headers={"X-Team": "a", "X-Desk": "b"})
        options = {"extra_headers": {"X-Desk": "c", "X-Case": "d"}, "timeout": 30, "stream": False, "n": 1}
        await model(replace(request(1), options=options), repeat=0)
        assert [server.headers[name] for name in ("x-team", "x-desk", "x-case")] == ["a", "c", "d"]


async def test_the_timeout_of_a_request_is_used() -> None:
    class Slow(LoopbackServer):
        def _choose_fault(self, body: dict[str, Any]) -> str | None:  # noqa: ARG002
            return "slow"

    with run_server(Slow(answer, slow_s=3.0)) as server:
        model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=60)
        with pytest.raises(ModelTimeoutError):
            await model(replace(request(1), options={"timeout": 0.3}), repeat=0)
