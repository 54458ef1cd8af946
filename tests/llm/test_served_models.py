"""Against real HTTP servers on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest

from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.errors import RequestError
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.search.rounds import BackpropRounds
from tests.worlds import desk
from tests.worlds.desk import Watcher

pytestmark = pytest.mark.slow


class ModelList:
    """A server with the OpenAI protocol: the models that it lists, and the requests and keys that it was sent."""

    def __init__(self, *listed: str) -> None:
        self.listed = listed
        self.received: list[str] = []
        self.keys: set[str] = set()


@contextmanager
def serve(models: ModelList) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            models.received.append(self.requestline)
            models.keys.add(self.headers["Authorization"])
            self.send_response(200 if models.listed else 404)
            self.end_headers()
            self.wfile.write(orjson.dumps({"data": [{"id": name} for name in models.listed]} if models.listed else {}))

        def do_POST(self) -> None:
            models.received.append(self.requestline)
            self.send_error(500)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def gateway(url: str, *names: str) -> Gateway:
    return Gateway(models={name: LiteLLMModel(api_base=url, api_key="sk-house") for name in names})


@pytest.mark.long
def test_a_misspelled_name_is_found_before_a_run_without_a_call_of_a_model() -> None:
    models = ModelList("tiny", "expert")
    with serve(models) as url:
        problems = gateway(url, "openai/tiny", "openai/exprt").find_setup_problems(["openai/tiny", "openai/exprt"])
    assert problems == [f"{url} does not list the model 'exprt' (did you mean 'expert'?); it has expert, tiny"]
    assert models.keys == {"Bearer sk-house"}
    assert models.received == ["GET /v1/models HTTP/1.1"] * 2


@pytest.mark.long
def test_a_model_that_passed_is_not_checked_again() -> None:
    models = ModelList("tiny")
    with serve(models) as url:
        checked = gateway(url, "openai/tiny", "openai/tny")
        for _ in range(3):
            assert len(checked.find_setup_problems(["openai/tiny", "openai/tny"])) == 1
    assert len(models.received) == 1 + 3  # the misspelled one may be served by now


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_a_server_of_the_environment_is_asked_too(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = ModelList("tiny")
    with serve(models) as url:
        monkeypatch.setenv(variable, url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
        [problem] = Gateway().find_setup_problems(["openai/tny"])
    assert problem == f"{url} does not list the model 'tny' (did you mean 'tiny'?); it has tiny"
    assert models.keys == {"Bearer sk-env"}


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("mine", []),
        ("mine", ["llama.gguf"]),
        ("gpt-4o-mini", ["gpt-4o-mini-2024-07-18"]),
        ("llama3", ["llama3:latest"]),
    ],
)
def test_a_name_that_resembles_none_or_may_be_an_alias_is_left_to_the_run(name: str, listed: list[str]) -> None:
    with serve(ModelList(*listed)) as url:
        assert gateway(url, f"openai/{name}").find_setup_problems([f"openai/{name}"]) == []


def test_a_server_that_refuses_connections_is_found_before_a_run() -> None:
    url = "http://127.0.0.1:9/v1"
    [problem] = gateway(url, "openai/mine").find_setup_problems(["openai/mine"])
    assert problem == f"{url} refuses connections; start the server of the model 'mine', or correct its api_base"


def test_the_address_of_a_server_that_is_down_is_shown_without_its_secrets() -> None:
    [problem] = gateway("http://127.0.0.1:9/v1?sig=query-key-17", "openai/mine").find_setup_problems(["openai/mine"])
    assert problem.startswith("http://127.0.0.1:9/v1?sig=*** refuses connections")


@pytest.mark.parametrize("url", ["http://no-such-host.invalid/v1", "unix://socket"])
def test_a_server_that_is_not_known_to_be_down_is_left_to_the_run(url: str) -> None:
    assert gateway(url, "openai/mine").find_setup_problems(["openai/mine"]) == []


async def test_the_models_of_stages_are_checked_before_a_run_from_python() -> None:
    watcher = Watcher()
    with serve(ModelList("tiny")) as url:
        own = gateway(url, "openai/tny")
        search = BackpropRounds(optimizer=LLMOptimizer("openai/tny", gateway=own))
        with pytest.raises(RequestError) as refused:
            await Engine(desk.agent(), desk.evaluator(), search=search).run(desk.request(), observers=[watcher])
    line = f"LLMOptimizer: {url} does not list the model 'tny' (did you mean 'tiny'?); it has tiny"
    assert refused.value.problems == (line,)
    search = BackpropRounds(optimizer=LLMOptimizer("openai/mine", gateway=gateway("http://127.0.0.1:9", "openai/mine")))
    with pytest.raises(RequestError, match=r"LLMOptimizer: http://127\.0\.0\.1:9 refuses connections"):
        await Engine(desk.agent(), desk.evaluator(), search=search).run(desk.request(), observers=[watcher])
    search = BackpropRounds(optimizer=LLMOptimizer("gpt-4o-mni"))
    with pytest.raises(RequestError, match=r"gpt-4o-mni names no provider that litellm knows .did you mean 'gpt"):
        await Engine(desk.agent(), desk.evaluator(), search=search).run(desk.request(), observers=[watcher])
    assert watcher.events == []
