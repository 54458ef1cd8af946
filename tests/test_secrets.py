"""No secret is written to a file, an event, a line of output or a repr.

Canaries are planted wherever a secret can be given, and leaked wherever user code can leak one: in errors, answers and
tools. Then every byte of output is searched. Most canaries are random words, not shaped like credentials, so that only
code that knows them can hide them.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from base64 import b32encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from promptiter.agents.base import AgentRun
from promptiter.agents.declarations import Tool
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.api import load_run
from promptiter.engine.engine import Engine
from promptiter.engine.run import RunFailedError
from promptiter.errors import ModelError
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.trace_store import FileTraceStore
from promptiter.llm.cache.cache import FileCache
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.redaction import Redactor
from promptiter.llm.retries import Retries
from promptiter.runlog.events import Event
from promptiter.runlog.journal import MemoryJournal
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from tests.worlds import desk
from tests.worlds.model_server import LoopbackServer, run_server
from traces import ExecutionTrace, Failure, Step, write_traces
from traces.model import Json, Snapshot

pytestmark = pytest.mark.slow

PLACES = (
    *("literal_key", "literal_header", "variable_key", "variable_header", "environment_key", "judge_key"),
    *("judge_field", "metric_option", "user_key", "password", "query_key", "python_key", "python_header", "option_key"),
)
CANARY = {place: b32encode(hashlib.sha256(place.encode()).digest())[:18].decode().lower() for place in PLACES}
LOOKS = "sk-proj-Zq8vL2nT4xW6bR9cKmYs and Bearer h7Gq2LwXn90PzVb4"
HALVES = [
    half for each in (*CANARY.values(), "Zq8vL2nT4xW6bR9cKmYs", "h7Gq2LwXn90PzVb4") for half in (each[:9], each[-7:])
]
"""What is searched for: even half of a secret must not leak."""


@dataclass
class Search:
    """What was searched, and what was found there."""

    places: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    text: str = ""

    def look(self, place: str, text: bytes | str) -> None:
        raw = text.encode(errors="replace") if isinstance(text, str) else text
        self.places.append(f"{place} ({len(raw):,} bytes)")
        self.text += raw.decode(errors="replace")
        self.found += [f"{half} in {place}" for half in HALVES if half.encode() in raw]

    def look_below(self, folder: Path, *, planted: Iterable[str]) -> None:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if path.is_file() and name not in planted:
                raw = path.read_bytes()
                self.look(name, gzip.decompress(raw) if path.suffix == ".gz" else raw)

    def check(self, *parts: str) -> None:
        """Assert that nothing was found, and that files with these names exist and contain masks."""
        sys.stdout.write("\n  ".join(["searched:", *self.places, ""]))
        assert not self.found, "\n".join([*self.found, *self.places])
        for part in parts:
            assert any(part in place for place in self.places), f"no {part} among {self.places}"
        assert "***" in self.text


@dataclass
class Gossip(LoopbackServer):
    """Repeats all headers it receives: in answers, in errors and in tool calls."""

    heard: list[str] = field(default_factory=list)
    is_asked: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        echo = f"{request.headers.get('X-Any-Name', '')} {dict(request.headers)} {body.get('route_token', '')}"
        self.heard.append(echo)
        model = body["model"]
        if model.startswith("refuses-"):
            error = {"message": f"{body['messages'][-1]['content']} {echo}", "code": model}
            return web.json_response({"error": error}, status=int(model.removeprefix("refuses-")))
        if model == "slow":
            self.is_asked.set()
            while not self.is_over.is_set():  # noqa: ASYNC110 - it is set in another thread
                await asyncio.sleep(0.02)
        has_called = any(message["role"] == "tool" for message in body["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": echo}
        if body.get("response_format"):
            message["content"] = json.dumps({"reason": echo, "valid": False})
        if body.get("tools") and not has_called:
            message["tool_calls"] = [
                {
                    "id": tool["function"]["name"],
                    "type": "function",
                    "function": {"name": tool["function"]["name"], "arguments": json.dumps({"note": echo})},
                }
                for tool in body["tools"]
            ]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        made = {"id": "x", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
        return web.json_response({**made, "usage": usage})


@contextmanager
def gossiping() -> Iterator[Gossip]:
    server = Gossip(lambda _: "")
    with run_server(server):
        yield server


AGENT = """
import os
from promptiter import Edge, FunctionNode, GraphAgent, ModelNode, Tool

def vault(note):
    return {"note": note, os.environ["LEAKED"]: [os.environ["LEAKED"]]}

def broken_vault(note):
    raise OSError(os.environ["LEAKED"] + os.environ["LOOKS"])

def check(node_context):
    if "broken" in node_context.input:
        raise ValueError(os.environ["LEAKED"] + os.environ["LOOKS"])
    return node_context.incoming + os.environ["LEAKED"]

def grumpy(case, run, api_token):
    if "metric" in case.id:
        raise RuntimeError(os.environ["LEAKED"] + os.environ["LOOKS"])
    return 0.0

tools = (Tool(name="vault", description="Open it.", function=vault),
         Tool(name="broken_vault", description="Open it.", function=broken_vault, is_live=True))
agent = GraphAgent(name="gossip", nodes=(
    ModelNode(name="writer", model="openai/echo", instruction="Repeat " + os.environ["OPENAI_API_KEY"], tools=tools),
    FunctionNode(name="check", function=check),
), edges=(Edge("writer", "check"),))
slow = GraphAgent(name="slow", nodes=(ModelNode(name="writer", model="openai/slow", instruction="Repeat."),))
"""
BROKEN_AGENT = """
import os
raise ValueError("at import: " + os.environ["LEAKED"] + os.environ["LOOKS"])
"""
DRIVER = """
import json, logging, os, sys
handler = logging.FileHandler("promptiter.log")
logging.getLogger("promptiter").setLevel(logging.DEBUG)
logging.getLogger("promptiter").addHandler(handler)
from promptiter.cli import main
codes = []
for command in json.loads(sys.argv[1]):
    os.environ["LEAKED"] = command["leaked"]
    sys.argv = ["promptiter", *command["arguments"]]
    try:
        main()
    except SystemExit as end:
        codes.append(end.code or 0)
    logging.getLogger("promptiter.driver").info("ran %s", command["arguments"])
    sys.stdout.flush()
    with open("codes.json", "w") as file:
        json.dump(codes, file)
"""
IN_METRICS = ("judge_key", "judge_field", "metric_option", "user_key", "environment_key")
IN_CONFIG = ("literal_key", "literal_header", "variable_key", "variable_header", "option_key", "password")
IN_RUN = (*IN_CONFIG, *IN_METRICS)
PLANTED = ("promptiter.yaml", "slow.yaml", "failing.yaml", "broken.yaml", "metrics.json", "recorded.jsonl")
ENVIRON = {
    "HOUSE_ACCESS": CANARY["variable_key"],
    "ROUTE": CANARY["variable_header"],
    "OPENAI_API_KEY": CANARY["environment_key"],
    "LOOKS": LOOKS,
    "LEAKED": "",
}


def join_canaries(*places: str) -> str:
    return " ".join(CANARY[place] for place in places)


def planted_in(folder: Path, address: str) -> None:
    """A folder with an agent that leaks secrets, and configurations with canaries as secrets."""
    models: dict[str, Json] = {
        "openai/echo": {
            "api_base": address,
            "api_key": CANARY["literal_key"],
            "headers": {"X-House": CANARY["literal_header"], "X-Route": "to ${ROUTE}", "Accept": "*/*"},
            "options": {"extra_body": {"route_token": CANARY["option_key"]}},
        },
        "openai/refuses-401": {"api_base": address, "api_key": "${HOUSE_ACCESS}"},
        "openai/refuses-400": {"api_base": with_password(address)},
        "openai/slow": {"api_base": address, "api_key": "${HOUSE_ACCESS}"},
    }
    judge = {
        "model_name": "judge",
        "base_url": address,
        "api_key": CANARY["judge_key"],
        "extra_fields": {"route_token": CANARY["judge_field"]},
    }
    metrics = {
        "metrics": [
            {"metric_name": "llm_final_response", "criterion": {"llm_judge": {"judge_model": judge}}},
            {
                "metric_name": "grumpy",
                "evaluator_name": "agent:grumpy",
                "criterion": {"api_token": CANARY["metric_option"]},
            },
        ],
        "user_simulator_config": {"model": "openai/echo", "options": {"extra_body": {"token": CANARY["user_key"]}}},
    }
    config = {
        "agent": "agent:agent",
        "train": "train.jsonl",
        "validation": "validation.jsonl",
        "metrics": "metrics.json",
        "models": models,
        "evaluation": {"max_errored_fraction": 0.9},
        "max_rounds": 1,
    }
    files: dict[str, Json] = {
        "promptiter.yaml": config,
        "failing.yaml": {**config, "stages": "openai/refuses-401"},
        "slow.yaml": {**config, "agent": "agent:slow"},
        "broken.yaml": {**config, "agent": "broken_agent:agent", "metrics": metrics},
        "metrics.json": metrics,
    }
    for name, document in files.items():
        (folder / name).write_bytes(orjson.dumps(document))
    for name in ("train", "validation"):
        rows = (
            {"id": f"{name}-{word}", "input": f"a {word} of {name}", "expected": f"{word} {name}"}
            for word in ("word", "broken", "metric")
        )
        (folder / f"{name}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    (folder / "agent.py").write_text(AGENT)
    (folder / "broken_agent.py").write_text(BROKEN_AGENT)
    (folder / "drive.py").write_text(DRIVER)
    step = Step(
        id="a",
        node_id="a",
        output=Snapshot(CANARY["environment_key"]),
        error=Failure("E", join_canaries("environment_key")),
    )
    write_traces(folder / "recorded.jsonl", [ExecutionTrace(id="t", steps=(step,))])


LONGEST_S = 120
"""It takes seconds, more on a machine that is busy with other tests and imports litellm slowly."""

EVALUATE = ("evaluate", "agent:agent", "--eval-set", "validation.jsonl", "--metrics", "metrics.json")
CHECK = ("check", "validation.jsonl", "--agent", "agent:agent", "--metrics", "metrics.json", "--repeats", "2")


@contextmanager
def drive(folder: Path, server: Gossip, plan: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs these commands. Its output is in files of the folder."""
    kept = {key: value for key, value in os.environ.items() if key not in ("LITELLM_LOG", "COLUMNS")}
    given = {"OPENAI_BASE_URL": server.url, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "4000"}
    command = [sys.executable, "drive.py", plan]
    with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as err:
        process = subprocess.Popen(command, cwd=folder, env={**kept, **ENVIRON, **given}, stdout=out, stderr=err)
    try:
        yield process
    finally:
        server.is_over.set()
        process.kill()
        process.wait()


def cancel_last_command(process: subprocess.Popen[bytes], server: Gossip, errors: Path) -> int:
    """Press Ctrl-C during a model call, and again; returns the exit code."""

    def wait_until(holds: Callable[[], bool]) -> None:
        until = time.monotonic() + LONGEST_S
        while not holds():
            assert process.poll() is None, errors.read_text()
            assert time.monotonic() < until, errors.read_text()
            time.sleep(0.05)

    wait_until(server.is_asked.is_set)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: b"finishing the work in progress" in errors.read_bytes())
    process.send_signal(signal.SIGINT)
    return process.wait(timeout=LONGEST_S)


@pytest.mark.long
def test_no_secret_leaves_the_commands(tmp_path: Path) -> None:
    commands = [
        (["run", "broken.yaml"], IN_RUN, 2),
        (["run", "--json"], IN_RUN, 3),
        (["run", "failing.yaml"], IN_RUN, 1),
        ([*EVALUATE, "--json", "--junit", "junit.xml"], IN_METRICS, 1),
        (EVALUATE, IN_METRICS, 1),
        (CHECK, IN_METRICS, 0),
        (["evaluate", "broken_agent:agent", "--eval-set", "validation.jsonl"], ("environment_key",), 2),
        (["describe", "agent:agent"], (), 0),
        (["trace", "show", "recorded.jsonl"], (), 0),
        (["trace", "export", "recorded.jsonl", "--output", "exported.jsonl"], (), 0),
        (["run", "slow.yaml"], (), 130),  # cancelled
    ]
    plan = json.dumps([{"arguments": arguments, "leaked": join_canaries(*places)} for arguments, places, _ in commands])
    search = Search()
    with gossiping() as server:
        planted_in(tmp_path, server.url)
        with drive(tmp_path, server, plan) as driver:
            last = cancel_last_command(driver, server, tmp_path / "stderr.txt")
    codes = [*orjson.loads((tmp_path / "codes.json").read_bytes()), last]
    assert codes == [code for *_, code in commands], (tmp_path / "stderr.txt").read_text()
    search.look_below(tmp_path, planted=PLANTED)
    search.check(
        "result.json", "best.json", "junit.xml", "exported.jsonl", "promptiter.log", "stdout.txt", "stderr.txt"
    )
    heard = "".join(server.heard)
    sent = ("literal_key", "literal_header", "variable_key", "variable_header", "judge_key", "judge_field")
    assert all(CANARY[place] in heard for place in sent)


class Gossiping:
    """Custom models and stages that leak everything they know."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        raise RuntimeError(f"{request.surface.id}: {self.text} {LOOKS}")

    async def observe(self, event: Event) -> None:
        if event.round:
            raise KeyError(self.text, LOOKS)


def gossip_agent(text: str) -> GraphAgent:
    def vault(note: str) -> dict[str, Json]:
        return {"note": note, text: [text]}

    def broken_vault(note: str) -> str:
        raise OSError(note, text, LOOKS)

    tools = (
        Tool(name="vault", description="Open it.", function=vault),
        Tool(name="broken_vault", description="Open it.", function=broken_vault),
    )
    return GraphAgent(
        name="gossip", nodes=(ModelNode(name="writer", model="openai/echo", instruction="Write.", tools=tools),)
    )


async def test_no_secret_reaches_events_caches_traces_and_logs_of_a_run_from_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys are given in Python; the agent, its tools, the metric, the optimizer and an observer all repeat them."""
    text = join_canaries("python_key", "python_header", "password", "query_key")
    watcher, journal = desk.Watcher(), MemoryJournal()
    search = Search()

    def metric(case: EvalCase, _run: object) -> tuple[float, str]:
        if case.id.endswith("1"):
            raise RuntimeError(f"{text} {LOOKS}")
        return 0.0, text

    with caplog.at_level(logging.DEBUG, logger="promptiter"), gossiping() as server:
        gateway = Gateway(models={"openai/echo": model_at(server.url)}, cache=FileCache(tmp_path / "calls.jsonl"))
        gateway.add_model("with_password", model_at(with_password(server.url)))
        gateway.add_model("with_query", LiteLLMModel(api_base=f"{server.url}?key={CANARY['query_key']}"))
        evaluator = Evaluator(
            [FunctionMetric(name="grumpy", function=metric)],
            gateway=gateway,
            options=EvaluationOptions(max_errored_fraction=0.9),
            trace_store=FileTraceStore(tmp_path / "traces.jsonl.gz"),
        )
        engine = Engine(gossip_agent(text), evaluator, optimizer=Gossiping(text))
        with pytest.raises(RunFailedError) as failed:
            await engine.run(desk.request(), observers=[watcher, Gossiping(text)], journal=journal)
        result = failed.value.result
        gateway.cache.close()
    assert all(CANARY[place] in "".join(server.heard) for place in ("python_key", "python_header"))
    search.look("the result", result.to_json())
    assert "RuntimeError: writer#instruction: ***" in search.text, "the optimizer was not called"
    for name, events in (("observed", watcher.events), ("journal", journal.events)):
        search.look(name, "\n".join(event.model_dump_json() for event in events))
    search.look("logs", caplog.text)
    search.look_below(tmp_path, planted=())
    assert "observer Gossiping failed" in caplog.text
    search.check("the result", "observed", "journal", "logs", "traces.jsonl.gz", "calls.jsonl")


def model_at(address: str) -> LiteLLMModel:
    headers = {"X-Any-Name": CANARY["python_header"], "Accept": "*/*"}
    return LiteLLMModel(api_base=address, api_key=CANARY["python_key"], headers=headers, timeout_s=10)


def with_password(address: str) -> str:
    return address.replace("://", f"://eve:{CANARY['password']}@")


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_no_server_error_repeats_what_was_sent(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """Also in truncated messages, and in the logs of litellm."""
    search, name = Search(), f"openai/refuses-{status}"
    with caplog.at_level(logging.WARNING), gossiping() as server:
        for address in (server.url, with_password(server.url)):
            gateway = Gateway(models={name: model_at(address)}, retries=Retries(attempts=2, first_delay_s=0.01))
            for length in (
                1,
                *range(400, 448, 4),
            ):  # messages are truncated at 500 characters, sometimes inside the header
                request = ModelRequest(model=name, messages=(Message("user", "x" * length),))
                with pytest.raises(ModelError) as failed:
                    await model_at(address)(request, repeat=0)
                search.look("the error of the model alone", "".join(traceback.format_exception(failed.value)))
            with pytest.raises(ModelError) as failed:
                await gateway.ask(request, CallSite())
            search.look("the error", "".join(traceback.format_exception(failed.value)))
    search.look("logs", caplog.text)
    assert CANARY["python_key"] in "".join(server.heard)
    search.check("the error", "logs")


async def test_a_cached_answer_equals_the_first_one() -> None:
    secret = CANARY["python_key"]
    wish = ToolRequest("1", "vault", {"key": secret, "keys": [f"a {secret}"]})
    model = ScriptedModel([ModelReply(text=f"it is {secret}", tool_requests=(wish,))])
    gateway = Gateway(models={"m": model}, redactor=Redactor([secret]))
    request = ModelRequest(model="m", messages=(Message("user", "?"),))
    first, again = [await gateway.ask(request, CallSite()) for _ in range(2)]
    assert first == again
    assert first.text == "it is ***"
    assert first.tool_requests == (ToolRequest("1", "vault", {"key": "***", "keys": ["a ***"]}),)
    for is_live in (False, True):
        given = await gateway.call_tool("vault", {}, lambda: {"key": secret}, CallSite(), is_live=is_live)
        assert given == {"key": "***"}


def test_no_part_of_a_configured_run_shows_a_secret(tmp_path: Path) -> None:
    search = Search()
    planted_in(tmp_path, "http://house.invalid/v1")
    path = tmp_path / "quiet.yaml"
    document = orjson.loads((tmp_path / "broken.yaml").read_bytes())
    document["metrics"]["metrics"][1]["evaluator_name"] = "tests.test_secrets:grumpy"
    path.write_bytes(orjson.dumps({**document, "agent": "tests.test_secrets:quiet_agent"}))
    run = load_run(path, environ=ENVIRON)
    for part in reachable(run):
        search.look(f"repr of {type(part).__name__}", f"{part!r} {part!s}")
    search.look("all that the redactor says", run.gateway.redactor.redact_text(join_canaries(*IN_RUN)))
    search.check("ConfiguredRun", "Gateway", "LiteLLMModel", "ModelSettings", "RunConfig", "Engine", "JudgeEndpoint")
    search.check("Redactor", "JudgeModel", "Evaluator", "UserSimulator", "FunctionMetric", "the redactor says")


def quiet_agent() -> GraphAgent:
    return GraphAgent(name="quiet", nodes=(ModelNode(name="draft", instruction="Draft."),))


def grumpy(case: EvalCase, run: AgentRun, *, api_token: str) -> float:
    raise AssertionError(case.id)


def reachable(top: object) -> Iterator[object]:
    """The promptiter objects that an object contains, recursively."""
    seen, waiting = {id(top)}, [top]
    while waiting:
        part = waiting.pop()
        inside: list[object] = []
        if isinstance(part, Mapping):
            inside += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            inside += part
        elif type(part).__module__.startswith("promptiter"):
            yield part
            slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
            inside += [getattr(part, name, None) for name in slots]
            inside += getattr(part, "__dict__", {}).values()
            inside += [getattr(part, "__pydantic_extra__", None)]
        for each in inside:
            if id(each) not in seen and not isinstance(each, str | bytes):
                seen.add(id(each))
                waiting.append(each)
