"""An agent that is a service: its requests, its answers and its limits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.black_box.http import HttpAgent
from promptiter.errors import SetupError
from promptiter.profile import Profile

NOTE = {"note": "Be kind."}


class Service(ThreadingHTTPServer):
    """Answers with all that it got, or as its path says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.running = self.most = 0
        self.content_type, self.answer = "application/json", b""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def handle_one(self) -> None:
        with self.server.lock:
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        encoding: dict[str, str] = {}
        status, answer = 200, orjson.dumps({"path": self.path, "headers": dict(self.headers), "body": body.decode()})
        match self.path.strip("/").split("/"):
            case ["status", number]:
                status, answer = int(number), b"it broke " + b"x" * 3000 + b" here"
            case ["given"]:
                answer, encoding = self.server.answer, {"Content-Type": self.server.content_type}
            case ["large"]:
                answer = b"x" * 10_000
            case ["slow", *_]:
                time.sleep(0.05)
            case ["stuck"]:
                time.sleep(1)
            case ["drip"]:
                self.drip()
                return
            case ["gzip"]:
                encoding = {"Content-Encoding": "gzip"}
        with self.server.lock:
            self.server.running -= 1
        self.send_response(status)
        for name, value in {"Content-Length": str(len(answer)), **encoding}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def drip(self) -> None:
        """Write a byte at a time, each long before the limit of a read, until the client gives up."""
        self.send_response(200)
        self.send_header("Content-Length", "500")
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(500):
                self.wfile.write(b"x")
                time.sleep(0.02)

    do_GET = do_POST = handle_one  # noqa: N815 - the names of http.server

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(agent: HttpAgent, *texts: str, **values: str) -> list[AgentRun]:
    profile = Profile.of(agent.describe(), {f"{name}#instruction": value for name, value in values.items()})

    async def run_all() -> list[AgentRun]:
        return await asyncio.gather(
            *(agent.run(CaseInput(text=text), profile, RunContext(case_id=text)) for text in texts)
        )

    return asyncio.run(run_all())


def test_prompts_and_case_are_in_the_body_the_headers_and_the_address(service: Service) -> None:
    agent = HttpAgent(
        url=f"{service.url}/chat?q={{input}}",
        headers={"X-Note": "{prompt:note}"},
        body={"text": "{input}", "past": "{history}", "k": "{prompt:bot#parameter.k}", "all": ["say {input}", 3, None]},
        prompts={"note": "Be kind.", "bot#parameter.k": 5},
    )
    [done] = run(agent, 'a&b/"é', note="Grüße")
    assert done.error is None
    got = orjson.loads(done.output)
    assert got["path"] == "/chat?q=a%26b%2F%22%C3%A9"
    assert got["headers"]["X-Note"].encode("latin-1").decode() == "Grüße"
    assert got["headers"]["Content-Type"] == "application/json"
    assert orjson.loads(got["body"]) == {"text": 'a&b/"é', "past": [], "k": 5, "all": ['say a&b/"é', 3, None]}


def test_the_default_body_has_the_input_and_all_prompts(service: Service) -> None:
    [done] = run(HttpAgent(url=service.url, prompts=NOTE, normalize="$.body"), "{prompt:note}", note="{input}")
    assert orjson.loads(done.output) == {"input": "{prompt:note}", "prompts": {"note": "{input}"}}


@pytest.mark.parametrize("value", ["a\nX-Evil: 1", "a\r\nb", "a\0b"])
def test_a_header_that_would_have_a_line_break_is_refused(service: Service, value: str) -> None:
    [done] = run(HttpAgent(url=service.url, headers={"X-Note": "{prompt:note}"}, prompts=NOTE), "a", note=value)
    assert done.error is not None
    assert "the header 'X-Note' would contain a line break" in done.error.message


@pytest.mark.parametrize(("status", "is_outage"), [(500, False), (503, True), (404, False), (429, True), (302, False)])
def test_a_status_that_is_not_a_success_is_an_error(service: Service, status: int, is_outage: bool) -> None:
    [done] = run(HttpAgent(url=f"{service.url}/status/{status}", prompts=NOTE), "a")
    assert done.error is not None
    assert f"answered with status {status}: … xxx" in done.error.message
    assert done.error.message.endswith("x here")
    assert done.error.is_outage == is_outage


@pytest.mark.parametrize(
    ("charset", "raw", "output"),
    [
        ("", "Grüße".encode(), "Grüße"),
        ("UTF-8", "Grüße".encode(), "Grüße"),
        ("ISO-8859-1", "Grüße".encode("latin-1"), "Grüße"),
        ("shift_jis", "東京".encode("shift_jis"), "東京"),
        ("punycode", b"Gre-zya9f", "Gre-zya9f"),
        ("undefined", b"tea", "tea"),
        ("rot13", b"tea", "tea"),
        ("bogus", b"tea \xff", "tea \ufffd"),
    ],
)
def test_an_answer_is_read_in_a_common_charset_or_as_utf_8(
    service: Service, charset: str, raw: bytes, output: str
) -> None:
    service.content_type, service.answer = f"text/plain; charset={charset}", raw
    [done] = run(HttpAgent(url=f"{service.url}/given", prompts=NOTE), "a")
    assert (done.output, done.error) == (output, None)


def test_an_answer_that_is_not_in_its_charset_is_an_error(service: Service) -> None:
    service.content_type, service.answer = "text/plain; charset=utf-8", b"\xff"
    [done] = run(HttpAgent(url=f"{service.url}/given", prompts=NOTE), "a")
    assert done.error is not None
    assert "answered with what is not utf-8" in done.error.message


def test_limits_of_time_and_size(service: Service) -> None:
    [large] = run(HttpAgent(url=f"{service.url}/large", prompts=NOTE, max_output_bytes=5_000), "a")
    [stuck] = run(HttpAgent(url=f"{service.url}/stuck", prompts=NOTE, timeout_s=0.1), "a")
    assert large.error is not None
    assert "answered with more than 5,000 bytes" in large.error.message
    assert stuck.error is not None
    assert "did not answer in 0.1 s" in stuck.error.message


def test_the_limit_of_time_is_that_of_the_whole_answer(service: Service) -> None:
    [done] = run(HttpAgent(url=f"{service.url}/drip", prompts=NOTE, timeout_s=0.2), "a")
    assert done.error is not None
    assert "did not answer in 0.2 s" in done.error.message


def test_an_answer_that_cannot_be_decompressed_is_an_error_of_the_service(service: Service) -> None:
    [done] = run(HttpAgent(url=f"{service.url}/gzip", prompts=NOTE), "a")
    assert done.error is not None
    assert done.error.type == "ServiceError"
    assert "answered with what cannot be decompressed" in done.error.message


def test_a_header_that_cannot_be_sent_is_not_an_outage(service: Service) -> None:
    [done] = run(HttpAgent(url=service.url, prompts=NOTE, headers={"X-Note": "{prompt:note}"}), "a", note=" kind ")
    assert done.error is not None
    assert "cannot be called: Illegal header value" in done.error.message
    assert not done.error.is_outage


def test_a_service_that_is_down_is_an_outage() -> None:
    [done] = run(HttpAgent(url="http://127.0.0.1:9/chat", prompts=NOTE), "a")
    assert done.error is not None
    assert done.error.is_outage
    assert "the service '127.0.0.1:9' cannot be reached" in done.error.message


def test_a_service_that_is_not_sent_the_key_runs_one_case_at_a_time(service: Service) -> None:
    agent = HttpAgent(url=f"{service.url}/slow", prompts=NOTE)
    assert all(done.error is None for done in run(agent, "a", "b", "c"))
    assert service.most == 1
    [note] = agent.notes
    assert note.startswith("the service of agent 'agent' runs one case at a time: it is not sent {key}")
    assert HttpAgent(url=service.url, headers={"Authorization": "Bearer {key}"}, prompts=NOTE).notes == ()


def test_the_health_check_is_an_address(service: Service) -> None:
    [done] = run(HttpAgent(url=service.url, prompts=NOTE, health=f"{service.url}/ready"), "a")
    assert done.error is None
    with pytest.raises(SetupError, match=r"the health check of the agent failed: .* answered with status 500"):
        run(HttpAgent(url=service.url, prompts=NOTE, health=f"{service.url}/status/500"), "a")
    with pytest.raises(SetupError, match=r"the health check of the agent failed: .* cannot be reached"):
        run(HttpAgent(url=service.url, prompts=NOTE, health="http://127.0.0.1:9/ready"), "a")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "localhost:80"}, "url is 'localhost:80'; give an address"),
        ({"headers": {"X Y": "1"}}, "'X Y' is not the name of a header"),
        ({"body": {"text": "{input}"}}, "the service does not get the prompt note"),
        ({"body": {"text": "{prompt:note}"}}, "does not get the message of the case"),
        ({"body": {"text": "{file:note}"}}, "{file:note} is not a placeholder"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"timeout_s": "5"}, "timeout_s must be above 0, got '5'"),
        ({"max_output_bytes": 1.5}, "max_output_bytes must be a whole number above 0, got 1.5"),
        ({"url": "http://[::1"}, "give an address"),
        ({"method": "GE T"}, "method is 'GE T'; give a method"),
        ({"method": 5}, "method is 5; give a method"),
    ],
)
def test_mistakes_are_found_when_the_agent_is_built(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        HttpAgent(**{"url": "http://127.0.0.1:9", "prompts": NOTE, **fields})
