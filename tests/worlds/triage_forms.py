"""The triage desk in other forms than a graph: a script in Python or JavaScript, a service, a remote agent."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from promptiter.agents.base import Agent
from promptiter.agents.black_box.command import CommandAgent
from promptiter.agents.black_box.http import HttpAgent
from promptiter.agents.remote.agent import RemoteAgent
from tests.worlds.node_programs import serve_node
from tests.worlds.triage_programs.desk import NAMES, answer
from tests.worlds.triage_world import ANSWER, NOTE, SORT, TERMS

PROGRAMS = Path(__file__).parent / "triage_programs"
PROMPTS = dict(zip(NAMES, (NOTE, SORT, ANSWER, TERMS), strict=True))
FILES = tuple(f"{{file:{name}}}" for name in NAMES)


def make_python_script() -> CommandAgent:
    """A process for each case, which only has the standard library."""
    return CommandAgent(
        command=(sys.executable, "-S", str(PROGRAMS / "desk.py"), *FILES), prompts=PROMPTS, name="triage"
    )


def make_node_script() -> CommandAgent:
    """The same in JavaScript. Skips the test if Node.js is not installed."""
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed: apt-get install nodejs")
    return CommandAgent(command=("node", str(PROGRAMS / "desk.mjs"), *FILES), prompts=PROMPTS, name="triage")


def ask_openai(
    http_client: httpx.Client, base_url: str, key: str, model: str, messages: Sequence[Any], tools: Sequence[Any]
) -> Mapping[str, Any]:
    """Ask with the SDK of OpenAI. Connections are shared: each client would read all certificates of the machine."""
    import openai

    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, http_client=http_client)
    given: dict[str, Any] = {"tools": list(tools)} if tools else {}
    reply = client.chat.completions.create(model=model, messages=list(messages), **given)
    message: Mapping[str, Any] = reply.choices[0].message.model_dump(exclude_none=True)
    return message


class _Desk(BaseHTTPRequestHandler):
    """A service that asks models with the address and key that it was sent."""

    def __init__(self, *arguments: Any, http_client: httpx.Client) -> None:
        self.http_client = http_client
        super().__init__(*arguments)

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Authorization"].removeprefix("Bearer ")
        ask = partial(ask_openai, self.http_client, given["base_url"], key)
        body = json.dumps({"answer": answer(given["message"], given["prompts"], ask)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_desk() -> Iterator[HttpAgent]:
    """The desk as a service with the SDK of OpenAI, while the block runs."""
    http_client = httpx.Client()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Desk, http_client=http_client))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield HttpAgent(
            url=f"http://127.0.0.1:{server.server_port}/",
            headers={"Authorization": "Bearer {key}"},
            body={
                "message": "{input}",
                "base_url": "{base_url}",
                "prompts": {name: f"{{prompt:{name}}}" for name in NAMES},
            },
            normalize="$.answer",
            prompts=PROMPTS,
            name="triage",
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        http_client.close()


@contextmanager
def serve_remotely() -> Iterator[RemoteAgent]:
    """The desk as a remote agent in JavaScript, which sends its traces, while the block runs."""
    structure = {
        "name": "triage",
        "nodes": [{"id": name, "kind": "llm"} for name in ("note", "sort", "answer")],
        "edges": [{"source": "note", "target": "sort"}, {"source": "sort", "target": "answer"}],
        "entry": "note",
        "surfaces": [
            *({"node_id": name, "type": "instruction", "value": PROMPTS[name]} for name in ("note", "sort", "answer")),
            {"node_id": "answer", "type": "tool", "part": "terms", "value": TERMS},
        ],
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "structure.json"
        file.write_text(json.dumps(structure))
        with serve_node(PROGRAMS / "remote_desk.mjs", file) as program:
            yield RemoteAgent(program.address)


@contextmanager
def make_form(name: str) -> Iterator[Agent]:
    """The desk in the form of this name, while the block runs."""
    if name == "service":
        with serve_desk() as agent:
            yield agent
    elif name == "remote":
        with serve_remotely() as remote:
            yield remote
    else:
        makers: dict[str, Callable[[], Agent]] = {"python": make_python_script, "node": make_node_script}
        yield makers[name]()


FORMS = ("python", "node", "service", "remote")
