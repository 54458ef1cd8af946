"""HttpAgent: an agent that is an HTTP service.

    agent = HttpAgent(
        url="http://localhost:8080/chat",
        body={"message": "{input}", "system": "{prompt:reply}"},
        prompts={"reply": Path("prompts/reply.md")},
        normalize="$.answer",
    )

Address, headers and all texts of the body are templates; see `templates`. A service that asks models with the `{key}`
and `{base_url}` that it was sent is counted for each case. Any other service gets one case at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import quote, urlsplit

import orjson

from promptiter.agents.argument_checks import check_above_zero, check_named, check_value
from promptiter.agents.base import AgentRun, CaseInput, RunContext, to_text
from promptiter.agents.black_box.agent import BlackBoxAgent
from promptiter.agents.black_box.health import HealthCheck, HealthChecker, validate_health_check
from promptiter.agents.black_box.hosts import AgentHosts
from promptiter.agents.black_box.output import read_answer
from promptiter.agents.black_box.run import BlackBoxAnswer, BlackBoxInput, run_black_box
from promptiter.agents.black_box.service_client import CONTROL, HEADER_NAME, check_status, send
from promptiter.agents.black_box.templates import Placeholder, fill_json, fill_text, list_texts, parse_template
from promptiter.concurrency import Slots
from promptiter.errors import ServiceError, SetupError
from promptiter.profile import Profile
from promptiter.wording import shorten
from traces.model import Json


@dataclass(frozen=True, kw_only=True)
class HttpAgent(BlackBoxAgent):
    """Sends a request for each case. Any status but 2xx is the error of the case.

    Without a `body`, it is `{"input": ..., "prompts": {...}}` with all prompts by name.
    """

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Json = None
    timeout_s: float = 300.0
    max_output_bytes: int = 10_000_000
    health: HealthCheck | None = None
    hosts: AgentHosts | None = None
    """The hosts that may be called; by default all."""

    def __post_init__(self) -> None:
        place = f"agent {self.name!r}:"
        check_value(f"{place} url", self.url, str, wanted="an address, such as http://localhost:8080/chat")
        check_named(f"{place} headers", self.headers, str, wanted="texts by name, such as {'X-Mode': 'test'}")
        check_value(f"{place} method", self.method, str, wanted="a method, such as POST")
        if not HEADER_NAME.fullmatch(self.method):
            raise SetupError(f"{place} method is {shorten(self.method)}; give a method, such as POST")
        if not _is_address(self.url):
            raise SetupError(f"{place} url is {shorten(self.url)}; give an address, such as http://localhost:8080/chat")
        check_above_zero(f"{place} timeout_s", self.timeout_s)
        check_above_zero(f"{place} max_output_bytes", self.max_output_bytes, int)
        if unusable := [each for each in self.headers if not HEADER_NAME.fullmatch(each)]:
            raise SetupError(f"{place} {shorten(unusable[0])} is not the name of a header")
        validate_health_check(self.health)
        if self.hosts is not None:
            for each in (self.url, self.health):
                if isinstance(each, str):
                    self.hosts.check(each)
        super().__post_init__()
        places = "url, headers or body"
        self._check_placeholders(self._placeholders, what="service", kinds=("prompt",), places=places)

    @property
    def notes(self) -> tuple[str, ...]:
        """How the runs of this agent are limited."""
        if self._forwards_key:
            return ()
        note = (
            f"the service of agent {self.name!r} runs one case at a time: it is not sent {{key}}, so its model calls "
            "cannot be assigned to cases; send {key} and {base_url}, and call models with them"
        )
        return (note,)

    async def check_health(self) -> None:
        """Run the health check, once. Raises SetupError if it fails."""
        await self._health.check(self.health)

    async def run(self, case: CaseInput, profile: Profile, context: RunContext | None = None) -> AgentRun:
        """Send one request. Its failure is returned in the AgentRun, not raised."""
        await self.check_health()
        context = context or RunContext()
        if self._forwards_key:
            return await run_black_box(self._prompts.snapshot, self._call, case, profile, context)
        async with self._turn:
            return await run_black_box(self._prompts.snapshot, self._call, case, profile, context)

    async def _call(self, given: BlackBoxInput) -> BlackBoxAnswer:
        url = fill_text(self._parse("url", self.url), lambda each: quote(to_text(given.look_up(each)), safe=""))
        headers = {name: self._fill_header(name, text, given) for name, text in self.headers.items()}
        body = None
        if self._body is not None:
            body = orjson.dumps(fill_json(self._body, self._prompts.ids, given.look_up))
            headers.setdefault("Content-Type", "application/json")
        reply = await send(
            self.method,
            url,
            headers=headers,
            body=body,
            timeout_s=self.timeout_s,
            max_bytes=self.max_output_bytes,
            hosts=self.hosts,
        )
        check_status(url, reply)
        answer, data = await read_answer(reply.text.rstrip("\r\n"), self.normalize)
        return BlackBoxAnswer(text=answer, data=data)

    def _fill_header(self, name: str, template: str, given: BlackBoxInput) -> str:
        value = fill_text(self._parse(f"headers.{name}", template), given.look_up)
        if CONTROL.search(value):
            raise ServiceError(
                f"the header {name!r} would contain a line break or another control character; send this text in the "
                "body"
            )
        return value

    def _parse(self, place: str, text: str) -> list[str | Placeholder]:
        return parse_template(text, self._prompts.ids, place=f"agent {self.name!r}: {place}", kinds=("prompt",))

    @cached_property
    def _health(self) -> HealthChecker:
        return HealthChecker(self.hosts)

    @cached_property
    def _turn(self) -> Slots:
        return Slots(1)

    @cached_property
    def _body(self) -> Json:
        if self.body is not None or self.method in ("GET", "HEAD", "DELETE"):
            return self.body
        given = {} if self.is_in_place else {"prompts": {name: f"{{prompt:{name}}}" for name in self.prompts}}
        return {"input": "{input}", **given}

    @cached_property
    def _placeholders(self) -> tuple[Placeholder, ...]:
        return tuple(each for each in self._list_parts() if isinstance(each, Placeholder))

    def _list_parts(self) -> Iterator[str | Placeholder]:
        yield from self._parse("url", self.url)
        for name, text in self.headers.items():
            yield from self._parse(f"headers.{name}", text)
        for text in list_texts(self._body):
            yield from self._parse("body", text)

    @property
    def _forwards_key(self) -> bool:
        return any(each.kind in ("key", "base_url") for each in self._placeholders)  # the address contains the key


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # half of an IPv6 address
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)
