"""Against real HTTP servers on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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


class ModelList:
    """A server with the OpenAI protocol: the models that it lists, whether it takes any name, and what it was sent."""

    def __init__(self, *listed: str, takes_any: bool = False) -> None:
        self.listed = listed
        self.takes_any = takes_any
        self.received: list[str] = []
        self.keys: set[str] = set()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.received.append(path)
        if path == "/v1/models":
            return (200, {"data": [{"id": name} for name in self.listed]}) if self.listed else (404, {})
        if self.takes_any or body["model"] in self.listed:
            return 200, {"choices": [{"message": {"role": "assistant", "content": "Hi"}}]}
        return 404, {"error": {"message": f"The model `{body['model']}` does not exist"}}


@contextmanager
def serve(models: ModelList) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            models.keys.add(self.headers["Authorization"])
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(orjson.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: Any) -> None:
            status, answer = models.answer(self.path, body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(orjson.dumps(answer))

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


def test_a_name_that_the_server_does_not_serve_is_found_before_a_run() -> None:
    models = ModelList("tiny", "expert")
    with serve(models) as url:
        problems = gateway(url, "openai/tiny", "openai/exprt").find_setup_problems(["openai/tiny", "openai/exprt"])
    assert problems == [f"{url} does not serve 'exprt' (did you mean 'expert'?); it has expert, tiny"]
    assert models.keys == {"Bearer sk-house"}
    assert models.received.count("/v1/chat/completions") == 1  # a name on the list is not tried


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_a_server_of_the_environment_is_asked_too(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = ModelList("tiny")
    with serve(models) as url:
        monkeypatch.setenv(variable, url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
        assert Gateway().find_setup_problems(["openai/exprt"]) == [f"{url} does not serve 'exprt'; it has tiny"]
    assert models.keys == {"Bearer sk-env"}


@pytest.mark.parametrize("models", [ModelList("llama.gguf", takes_any=True), ModelList()])
def test_a_server_that_takes_any_name_or_lists_none_is_believed(models: ModelList) -> None:
    with serve(models) as url:
        assert gateway(url, "openai/mine").find_setup_problems(["openai/mine"]) == []


def test_a_server_that_does_not_answer_is_left_to_the_run() -> None:
    assert gateway("http://127.0.0.1:9/v1", "openai/mine").find_setup_problems(["openai/mine"]) == []


async def test_the_models_of_stages_are_checked_before_a_run_from_python() -> None:
    watcher = Watcher()
    with serve(ModelList("tiny")) as url:
        own = gateway(url, "openai/exprt")
        search = BackpropRounds(optimizer=LLMOptimizer("openai/exprt", gateway=own))
        with pytest.raises(RequestError) as refused:
            await Engine(desk.agent(), desk.evaluator(), search=search).run(desk.request(), observers=[watcher])
    assert refused.value.problems == (f"{url} does not serve 'exprt'; it has tiny",)
    search = BackpropRounds(optimizer=LLMOptimizer("gpt-4o-mni"))
    with pytest.raises(RequestError, match=r"gpt-4o-mni names no provider that litellm knows .did you mean 'gpt"):
        await Engine(desk.agent(), desk.evaluator(), search=search).run(desk.request(), observers=[watcher])
    assert watcher.events == []
