"""RemoteAgent: an agent in any language, behind `GET /structure` and `POST /runs`.

    agent = RemoteAgent("http://localhost:8080", headers={"Authorization": "Bearer ${BOT_TOKEN}"})

It describes its own surfaces, and gets the value of each with every request, so several candidates run at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from urllib.parse import urlsplit

from promptiter.agents.argument_checks import check_above_zero, check_named, check_value
from promptiter.agents.base import AgentRun, CaseInput, RunContext, to_text
from promptiter.agents.black_box.hosts import AgentHosts
from promptiter.agents.black_box.run import BlackBoxAnswer, BlackBoxInput, run_black_box
from promptiter.agents.black_box.service_client import (
    CONTROL,
    HEADER_NAME,
    ServiceReply,
    check_status,
    name_service,
    send,
)
from promptiter.agents.remote.address import check_address, is_loopback
from promptiter.agents.remote.messages import (
    ModelAccess,
    PastMessage,
    RunAnswer,
    RunDocument,
    RunInput,
    read_message,
)
from promptiter.agents.remote.structure import RemoteStructure
from promptiter.agents.remote.trace import read_trace
from promptiter.endpoint.sessions import EndpointSession
from promptiter.errors import ModelUnavailableError, ServiceError, SetupError, StructureMismatchError
from promptiter.llm.gateway import find_active_gateway
from promptiter.llm.secret import secrets_of_headers
from promptiter.llm.secret_fields import expand_variables
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from promptiter.wording import shorten

FIRST_WAIT_S = 0.5
"""How long to wait before a run is sent again to an agent that is down; then twice as long, and so on."""
STRUCTURE_TIMEOUT_S = 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RemoteAgent:
    """An agent that is asked over HTTP. Its model calls go through the gateway if it makes them as the request says.

    Headers may contain `${VAR}`, which is read from the environment when a request is sent, and so is never stored. A
    run that the agent did not answer because it is down is sent again `retries` times.
    """

    url: str = field(kw_only=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 300.0
    max_output_bytes: int = 10_000_000
    retries: int = 4
    gateway: bool | str | None = None
    """Whether requests name the gateway as the place to call models; by default if the agent is on this machine. For
    one on another machine, the address under which that reaches this one, such as http://10.0.0.5:8787.
    """

    hosts: AgentHosts | None = None
    """The hosts that may be called; by default all."""

    def __post_init__(self) -> None:
        check_value("the url of a remote agent", self.url, str, wanted="an address, such as http://localhost:8080")
        check_address(self.url)
        if self.hosts is not None:
            self.hosts.check(self.url)
        place = f"the remote agent {self.url!r}:"
        if isinstance(self.gateway, str):
            _check_gateway(self.gateway, place)
        check_named(f"{place} headers", self.headers, str, wanted="texts by name, such as {'X-Mode': 'test'}")
        check_above_zero(f"{place} timeout_s", self.timeout_s)
        check_above_zero(f"{place} max_output_bytes", self.max_output_bytes, int)
        check_value(f"{place} retries", self.retries, int, wanted="a whole number")
        if self.retries < 0:
            raise SetupError(f"{place} retries is {self.retries}; give 0 or more")
        for name, value in self.headers.items():
            if not HEADER_NAME.fullmatch(name) or CONTROL.search(value):
                raise SetupError(f"{place} {shorten(name)} cannot be sent as a header; give plain names and values")

    def describe(self) -> StructureSnapshot:
        """The structure that the agent reports. It is asked for once; that call blocks."""
        return self._structure.get()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about the model calls of the agent."""
        if self.sends_access:
            return ()
        note = (
            f"{name_service(self.url)} does not call models through the gateway, so its calls are neither cached nor "
            "limited; its usage is what it reports"
        )
        return (note,)

    async def check_health(self) -> None:
        """Check that the agent answers, and that it has the structure that it had. Raises SetupError otherwise."""
        await self._structure.check()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext | None = None) -> AgentRun:
        """Send one run, again if the agent is down. A failure is returned in the AgentRun, not raised.

        Raises StructureMismatchError if the agent came back with another structure.
        """
        context = context or RunContext()
        end = time.monotonic() + (math.inf if context.deadline_s is None else context.deadline_s)
        sent = _Sent(self, profile, context)
        run = await run_black_box(self.describe(), sent.send, case, profile, context)
        for number in range(self.retries):
            wait_s = FIRST_WAIT_S * 2**number
            if not sent.is_lost or time.monotonic() + wait_s >= end:
                break
            logger.debug("%s is down, waiting %g s", name_service(self.url), wait_s)
            await asyncio.sleep(wait_s)
            await self._check_restarted()
            left_s = None if context.deadline_s is None else end - time.monotonic()
            again = await run_black_box(self.describe(), sent.send, case, profile, replace(context, deadline_s=left_s))
            if left_s is not None and time.monotonic() >= end:
                break  # the agent was down for a part of the time, so this is not its fault
            run = again
        return run

    async def _check_restarted(self) -> None:
        """Check the structure of an agent that was down. One that still is will be asked once more."""
        try:
            await self._structure.check()
        except StructureMismatchError:
            raise
        except SetupError as error:
            logger.debug("%s", error)

    async def ask(self, method: str, path: str, body: bytes | None = None, *, timeout_s: float) -> ServiceReply:
        """Send a request to the agent."""
        headers = self._expand_headers()
        if (gateway := find_active_gateway()) is not None:
            gateway.redactor.learn(secrets_of_headers(headers))
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        url = f"{self.url.rstrip('/')}{path}"
        return await send(
            method,
            url,
            headers=headers,
            body=body,
            timeout_s=timeout_s,
            max_bytes=self.max_output_bytes,
            hosts=self.hosts,
        )

    def _expand_headers(self) -> dict[str, str]:
        """The headers to send. A variable may come from a file whose last line has an end."""
        try:
            headers = {name: expand_variables(value, os.environ).strip() for name, value in self.headers.items()}
        except ValueError as error:
            raise SetupError(f"the headers of {name_service(self.url)}: {error}") from error
        for name, value in headers.items():
            if CONTROL.search(value):  # what would be raised for it shows the value
                raise SetupError(
                    f"the header {name!r} of {name_service(self.url)} contains a line break or another control "
                    "character; correct its variable"
                )
        return headers

    async def _fetch_structure(self) -> str:
        reply = await self.ask("GET", "/structure", timeout_s=STRUCTURE_TIMEOUT_S)
        check_status(self.url, reply)
        return reply.text

    @property
    def sends_access(self) -> bool:
        """Whether requests name the gateway as the place to call models."""
        return is_loopback(self.url) if self.gateway is None else bool(self.gateway)

    @cached_property
    def _structure(self) -> RemoteStructure:
        return RemoteStructure(self._fetch_structure, sender=name_service(self.url))


class _Sent:
    """A run that is sent to an agent, maybe several times. It `is_lost` if the agent was down the last time."""

    def __init__(self, agent: RemoteAgent, profile: Profile, context: RunContext) -> None:
        self.is_lost = False
        self._agent = agent
        self._profile = profile
        self._context = context

    async def send(self, given: BlackBoxInput) -> BlackBoxAnswer:
        agent, sender = self._agent, name_service(self._agent.url)
        self.is_lost = False
        document = self._build_document(given, await self._find_access(given.session))
        body = document.model_dump_json().encode()
        try:
            reply = await agent.ask("POST", "/runs", body, timeout_s=agent.timeout_s)
            if reply.status == HTTPStatus.CONFLICT:
                await agent.check_health()
            check_status(agent.url, reply)
        except ModelUnavailableError:
            self.is_lost = True
            raise
        run = read_message(RunAnswer, reply.text, sender=sender).run
        if run.output is None and run.data is None and run.error is None:
            raise ServiceError(f"{sender} answered with neither output nor data nor error")
        nodes = [node.id for node in agent.describe().nodes]
        return BlackBoxAnswer(
            text=run.output if run.output is not None else to_text(run.data) if run.error is None else "",
            data=run.data,
            error=None if run.error is None else run.error.build(),
            trace=read_trace(run, given.prompts, nodes=nodes, sender=sender),
            usage=None if run.usage is None else run.usage.build(),
        )

    async def _find_access(self, session: EndpointSession) -> ModelAccess | None:
        """The gateway for this run; None if requests do not name it."""
        if not self._agent.sends_access:
            return None
        address = self._agent.gateway
        base_url = await session.listen_at(address) if isinstance(address, str) else session.base_url
        return ModelAccess(base_url=base_url, api_key=session.key)

    def _build_document(self, given: BlackBoxInput, access: ModelAccess | None) -> RunDocument:
        context, agent, case = self._context, self._agent, given.case
        return RunDocument(
            structure_id=self._profile.structure_id,
            values=dict(given.prompts),
            input=RunInput(
                text=case.text,
                history=tuple(PastMessage(role=each.role, content=each.content) for each in case.history),
                state=dict(case.state),
            ),
            case_id=context.case_id,
            repeat=context.repeat,
            turn=context.turn,
            seed=context.seed,
            deadline_s=min(agent.timeout_s, context.deadline_s or agent.timeout_s),
            models=access,
        )


def _check_gateway(address: str, place: str) -> None:
    try:
        check_address(address)
    except SetupError:
        is_usable = False
    else:
        is_usable = address.startswith("http://") and not urlsplit(address).path.strip("/")
    if not is_usable:
        raise SetupError(
            f"{place} gateway is {shorten(address)}; give the address of this machine and a port for the gateway, such "
            "as http://10.0.0.5:8787"
        )
