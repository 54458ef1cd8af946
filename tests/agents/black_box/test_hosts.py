"""At which hosts a server calls agents: what is on the list, where names lead, and redirects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from promptiter.agents.base import CaseInput
from promptiter.agents.black_box.hosts import AgentHosts
from promptiter.agents.black_box.http import HttpAgent
from promptiter.agents.remote.agent import RemoteAgent
from promptiter.concurrency import run_in_thread
from promptiter.endpoint.http_messages import HttpAnswer, HttpRequest
from promptiter.endpoint.http_server import HttpServer
from promptiter.errors import SetupError
from promptiter.profile import Profile

NOTE = {"note": "Be kind."}


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://a.example", ["a.example"]),
        ("http://A.example:81", ["a.EXAMPLE"]),
        ("http://a.example./x", ["b", "a.example"]),
        ("https://a.example", ["a.example:443"]),
        ("http://[::1]:81", ["[::1]:81"]),
        ("http://[0:0::1]:81", ["::1"]),
        ("http://169.254.169.254", ["169.254.169.254:80"]),
        ("http://10.0.0.1", None),
    ],
)
def test_hosts_on_the_list_are_allowed(url: str, allowed: list[str] | None) -> None:
    AgentHosts.parse(allowed).check(url)


@pytest.mark.parametrize(
    ("url", "allowed", "message"),
    [
        ("http://a.example.evil.example", ["a.example"], "at 'a.example.evil.example:80' may not be called; allowed: "),
        ("http://a.example:81", ["a.example:80"], "allowed: a.example:80"),
        ("http://a.example@evil.example", ["a.example"], "at 'evil.example:80'"),
        ("http://{input}/x", ["a.example"], "may not be called"),
        ("http://a.example", [], "allowed: no host"),
        ("http://a.example:{port}", None, "that can be checked"),
        ("ftp://a.example", None, "that can be checked"),
    ],
)
def test_other_hosts_are_refused(url: str, allowed: list[str] | None, message: str) -> None:
    with pytest.raises(SetupError) as refused:
        AgentHosts.parse(allowed).check(url)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "169.254.0.1", "[fe80::1]", "[::ffff:169.254.169.254]", "[fd00:ec2::254]"),
        *("[::ffff:a9fe:a9fe]", "[64:ff9b::169.254.169.254]", "[2002:a9fe:a9fe::]", "[fd20:ce::254]"),
        *("100.100.100.200", "[::ffff:100.100.100.200]"),
    ],
)
def test_link_local_addresses_must_be_listed_themselves(host: str) -> None:
    with pytest.raises(SetupError, match="link-local address, where clouds serve credentials"):
        AgentHosts.parse(None).check(f"http://{host}/latest/meta-data")
    peer = host.strip("[]")
    with pytest.raises(SetupError, match="link-local"):
        AgentHosts.parse(["a.example"]).check_peer(peer, 80)
    AgentHosts.parse([host]).check_peer(peer, 80)


@pytest.mark.parametrize("text", ["", "http://a.example", "a.example/x", "a@b", "a:b", "a:", "a:99999", "a?b", "[::1"])
def test_what_is_not_a_host_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match="give HOST or HOST:PORT"):
        AgentHosts.parse([text])


class NotLoopback(AgentHosts):
    """Refuses connections to this machine, as if its address were link-local."""

    def check_peer(self, host: str, port: int) -> None:
        if host in ("127.0.0.1", "::1"):
            raise SetupError(f"agents at '{host}:{port}' may not be called")


async def test_a_name_that_leads_to_a_refused_address_gets_no_request() -> None:
    """Nothing is sent: the address of the connection is checked, whatever the name led to before."""
    async with serving() as (port, asked):
        agent = HttpAgent(
            url=f"http://localhost:{port}/chat", health=f"http://localhost:{port}/", prompts=NOTE, hosts=NotLoopback()
        )
        with pytest.raises(SetupError, match=r"health check of the agent failed: agents at '127\.0\.0\.1:"):
            await agent.check_health()
        agent = HttpAgent(url=f"http://localhost:{port}/chat", prompts=NOTE, hosts=NotLoopback())
        error = await run(agent)
        assert f"agents at '127.0.0.1:{port}' may not be called" in error
        remote = RemoteAgent(f"http://localhost:{port}", hosts=NotLoopback(), retries=0)
        with pytest.raises(SetupError, match="may not be called"):
            await run_in_thread(remote.describe)
        assert asked == []


async def test_a_host_that_comes_from_a_case_is_checked_when_it_is_known() -> None:
    agent = HttpAgent(url="http://{input}/latest", prompts=NOTE, hosts=AgentHosts())
    assert "link-local address" in await run(agent, "169.254.169.254")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    async with serving() as (other, reached):
        places = {"Location": f"http://127.0.0.1:{other}/"}
        async with serving(HttpAnswer(status=status, headers=places)) as (port, asked):
            hosts = AgentHosts.parse([f"127.0.0.1:{port}"])
            agent = HttpAgent(url=f"http://127.0.0.1:{port}/chat", prompts=NOTE, hosts=hosts)
            assert f"answered with status {status}" in await run(agent)
            remote = RemoteAgent(f"http://127.0.0.1:{port}", hosts=hosts)
            with pytest.raises(SetupError, match=f"answered with status {status}"):
                await run_in_thread(remote.describe)
            assert (asked, reached) == (["/chat", "/structure"], [])


async def run(agent: HttpAgent, text: str = "hello") -> str:
    """The error of a run."""
    done = await agent.run(CaseInput(text=text), Profile.baseline(agent.describe()))
    return str(done.error)


@asynccontextmanager
async def serving(answer: HttpAnswer | None = None) -> AsyncIterator[tuple[int, list[str]]]:
    """A server on loopback that always answers this: its port, and the paths that it was asked for."""
    asked: list[str] = []

    async def handle(request: HttpRequest) -> HttpAnswer:
        asked.append(request.path)
        return answer or HttpAnswer.of_json({})

    server = HttpServer(handle)
    port = await server.start(port=0)
    try:
        yield port, asked
    finally:
        await server.close()
