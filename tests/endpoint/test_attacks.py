"""Raw bytes against the endpoint: what is refused spends nothing, reaches no other run, and delays no other client."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
import pytest

from promptiter.endpoint import EndpointSession
from tests.endpoint.clients import HELLO, run_case
from tests.endpoint.test_http_server import exchange, serve

pytestmark = pytest.mark.slow

BODY = orjson.dumps({"model": "clerk", "messages": HELLO})


@dataclass
class Victim:
    """A session that is attacked, and another one that must notice nothing."""

    session: EndpointSession
    other: EndpointSession

    @property
    def port(self) -> int:
        return int(self.session.base_url.split(":")[2].split("/")[0])

    def write(
        self,
        *headers: str | bytes,
        method: str = "POST",
        path: str = "/{key}/v1/chat/completions",
        body: bytes = BODY,
        version: str = "HTTP/1.1",
        length: str | None = "",
        closes: bool = True,
    ) -> bytes:
        """A request as bytes; `{key}` and `{other}` are the keys of the two sessions."""
        keys = {"key": self.session.key, "other": self.other.key}
        lines = [f"{method} {path.format(**keys)} {version}", "Host: x"]
        if length is not None:
            lines.append(f"Content-Length: {length or len(body)}")
        if closes:
            lines.append("Connection: close")
        raw = [line.encode("latin-1") for line in lines]
        raw += [line.format(**keys).encode("latin-1") if isinstance(line, str) else line for line in headers]
        return b"\r\n".join(raw) + b"\r\n\r\n" + body

    async def send(self, *requests: bytes) -> bytes:
        return await asyncio.wait_for(exchange(self.port, b"".join(requests)), 20)


@asynccontextmanager
async def attack() -> AsyncIterator[Victim]:
    """Two sessions. At the end the attacked one still answers, and the other was asked nothing."""
    async with run_case() as (session, _), run_case() as (other, _):
        victim = Victim(session, other)
        yield victim
        assert (await victim.send(victim.write())).startswith(b"HTTP/1.1 200")
        assert other.calls == []


def read_status(answer: bytes) -> int:
    return int(answer.split()[1])


@pytest.mark.parametrize(
    "headers",
    [
        ("Authorization: Bearer {other}", "Authorization: Bearer {key}"),
        ("Authorization: Bearer {key}", "Authorization: Bearer {other}"),
        ("authorization: Bearer {key}", "AUTHORIZATION: Bearer {key}"),
        ("x-api-key: {other}", "X-API-Key: {key}"),
        ("api-key: {other}", "api-key: {key}"),
        ("X-Promptiter-Node: a", "X-Promptiter-Node: b"),
        ("X-Promptiter-Conversation: a", "x-promptiter-conversation: a"),
    ],
)
@pytest.mark.parametrize("path", ["/{key}/v1/chat/completions", "/v1/chat/completions"])
async def test_a_key_or_a_name_that_is_sent_twice_is_refused(headers: Sequence[str], path: str) -> None:
    async with attack() as victim:
        answer = await victim.send(victim.write(*headers, path=path))
        assert read_status(answer) == 400
        assert b"the request has several headers" in answer
        assert victim.session.calls == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (("Authorization: Bearer {other}",), 403),
        (("authorization: bearer\t{other} ",), 403),
        (("x-api-key: {other}",), 403),
        ((b"X: a\nX-Api-Key: b",), 400),
        ((b"X: a\rX-Api-Key: b",), 400),
        ((b"Authorization: Bearer\r\n b",), 400),
        ((b"Authorization : Bearer b",), 400),
        ((b"X-Promptiter-Node: \x1b[31mred",), 400),
        ((b"X-Promptiter-Node: a\x7fb",), 400),
        ((b"X-Promptiter-Node: a\xff\xfe",), 400),
        (("X-Promptiter-Node: " + "x" * 9000,), 400),
        (("X-Promptiter-Node: " + "x" * 101,), 400),
        (("Transfer-Encoding: chunked",), 400),
        (("Content-Length: 3",), 400),
        (("Content-Encoding: br",), 400),
        (("Content-Encoding: gzip",), 400),
    ],
)
async def test_headers_that_are_forged_or_not_http_are_refused(headers: Sequence[str | bytes], status: int) -> None:
    async with attack() as victim:
        assert read_status(await victim.send(victim.write(*headers))) == status
        assert victim.session.calls == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/{other}/../{key}/v1/chat/completions", 401),
        ("/{key}/v1/../../{other}/v1/chat/completions", 404),
        ("//{key}/v1/chat/completions", 401),
        ("/{key}%0d%0aX:y/v1/chat/completions", 401),
        ("/{key}/v1/chat%2fcompletions", 404),
        ("/{key}/v1/chat/completions%0d%0aX-Api-Key:%20{other}", 404),
        ("/{key}/v1/chat/completions/../models", 404),
        ("/{key}/v1/\x00chat/completions", 400),
        ("/{key}/v1/chat/completions\r", 400),
        ("/" + "%D9%A1" * 20 + "/v1/chat/completions", 401),
    ],
)
async def test_paths_are_taken_as_they_are(path: str, status: int) -> None:
    async with attack() as victim:
        assert read_status(await victim.send(victim.write(path=path))) == status
        assert victim.session.calls == []


@pytest.mark.parametrize(
    ("method", "status"),
    [("HEAD", 404), ("OPTIONS", 404), ("PUT", 404), ("TRACE", 404), ("CONNECT", 401), ("BREW", 400)],
)
async def test_other_methods_are_refused(method: str, status: int) -> None:
    async with attack() as victim:
        path = "evil:443" if method == "CONNECT" else "/{key}/v1/chat/completions"
        assert read_status(await victim.send(victim.write(method=method, path=path, body=b"", length="0"))) == status
        assert victim.session.calls == []


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
async def test_a_connection_is_never_upgraded(upgrade: str) -> None:
    headers = (f"Upgrade: {upgrade}", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
    async with attack() as victim:
        asked = victim.write("Connection: Upgrade", *headers, method="GET", body=b"", length="0", closes=False)
        reader, writer = await asyncio.open_connection("127.0.0.1", victim.port)
        writer.write(asked)
        assert read_status(await asyncio.wait_for(reader.readline(), 20)) == 404
        writer.close()


@pytest.mark.parametrize("length", ["-5", "+70", "0x10", "9" * 40, "1_0"])
async def test_a_length_that_is_not_a_number_is_refused(length: str) -> None:
    async with attack() as victim:
        assert read_status(await victim.send(victim.write(length=length))) == 400
        assert victim.session.calls == []


@pytest.mark.parametrize(
    ("chunks", "status"),
    [
        (b"zz\r\nabc", 400),
        (b"-1\r\nabc", 400),
        (b"f" * 20 + b"\r\nabc", 400),
        (b"%x\r\n%s\r\n0\r\nAuthorization: Bearer x\r\nX-Promptiter-Node: forged\r\n\r\n" % (len(BODY), BODY), 200),
    ],
)
async def test_chunks_that_are_none_are_refused_and_trailers_are_ignored(chunks: bytes, status: int) -> None:
    async with attack() as victim:
        answer = await victim.send(victim.write("Transfer-Encoding: chunked", length=None, body=chunks))
        assert read_status(answer) == status
        assert [call.node for call in victim.session.calls] == ([""] if status == 200 else [])


async def test_a_chunked_body_of_100_mb_is_refused_at_the_limit() -> None:
    sent = 0

    async def send_chunks(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        try:
            for _ in range(100):
                writer.write(chunk)
                await writer.drain()
                sent += 1
        except ConnectionError:
            pass

    async with attack() as victim:
        reader, writer = await asyncio.open_connection("127.0.0.1", victim.port)
        writer.write(victim.write("Transfer-Encoding: chunked", length=None, body=b""))
        sending = asyncio.create_task(send_chunks(writer))
        assert read_status(await asyncio.wait_for(reader.readline(), 20)) == 413
        writer.close()
        sending.cancel()
        assert sent < 100
        assert victim.session.calls == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"\xef\xbb\xbf" + BODY,
        BODY.decode().encode("utf-16"),
        b'{"model": "clerk", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "clerk", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "clerk", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "clerk", "messages": [{"role": "user", "content": "x"}], "x": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"model": "clerk", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"model": "clerk", "messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "clerk", "model": "os:abort", "messages": [{"role": "user", "content": "x"}]}',
    ],
)
async def test_a_body_that_is_not_plain_json_is_refused(body: bytes) -> None:
    async with attack() as victim:
        assert read_status(await victim.send(victim.write(body=body))) == 400
        assert victim.session.calls == []


async def test_a_key_that_occurs_twice_in_json_means_the_same_everywhere() -> None:
    body = b'{"model": "no", "model": "clerk", "messages": [{"role": "user", "content": "no", "content": "Hello"}]}'
    async with attack() as victim:
        assert b"You said: Hello" in await victim.send(victim.write(body=body))
        [call] = victim.session.calls
        assert (call.request.model, call.request.text) == ("clerk", "Hello")


async def test_a_compressed_body_of_300_mb_is_refused() -> None:
    bomb = gzip.compress(b" " * 1_000_000, 1) * 300
    async with attack() as victim:
        assert read_status(await victim.send(victim.write("Content-Encoding: gzip", body=bomb))) == 413
        assert victim.session.calls == []


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "application/json; charset=utf-16", "multipart/form-data", ""]
)
async def test_the_type_of_a_body_does_not_change_what_it_is(content_type: str) -> None:
    async with attack() as victim:
        assert read_status(await victim.send(victim.write(f"Content-Type: {content_type}"))) == 200


async def test_an_old_client_gets_its_answer_and_its_stream() -> None:
    async with attack() as victim:
        assert b"You said: Hello" in await victim.send(victim.write(version="HTTP/1.0", closes=False))
        body = orjson.dumps({"model": "clerk", "messages": HELLO, "stream": True})
        stream = await victim.send(victim.write(version="HTTP/1.0", closes=False, body=body))
        assert stream.startswith(b"HTTP/1.0 200")
        assert b"chunked" not in stream.partition(b"\r\n\r\n")[0].lower()
        assert stream.endswith(b"data: [DONE]\n\n")


async def test_requests_that_are_sent_together_are_answered_in_order_each_under_its_own_key() -> None:
    async with run_case() as (session, _), run_case() as (other, _):
        victim = Victim(session, other)
        first = victim.write(closes=False)
        unknown = victim.write(path="/sk-promptiter-unknown-key/v1/chat/completions", closes=False)
        last = victim.write(path="/{other}/v1/chat/completions")
        answers = (await victim.send(first, unknown, last)).split(b"HTTP/1.1 ")[1:]
        assert [int(each.split()[0]) for each in answers] == [200, 401, 200]
        assert (len(session.calls), len(other.calls)) == (1, 1)


async def test_what_follows_a_body_that_was_refused_is_not_read_as_a_request() -> None:
    async with attack() as victim:
        hidden = victim.write(path="/{key}/v1/models", method="GET", body=b"", length="0")
        answer = await victim.send(victim.write(length=str(100 * 1024 * 1024), body=hidden, closes=False))
        assert answer.count(b"HTTP/1.1 ") == 1
        assert read_status(answer) == 413


async def test_refusals_of_what_is_not_http_are_not_logged_with_their_keys(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with attack() as victim:
        for headers in ((b"X: a\nb",), ("X-Api-Key : {key}",)):
            assert read_status(await victim.send(victim.write(*headers))) == 400
        assert read_status(await victim.send(victim.write(method="BREW"))) == 400
        key = victim.session.key
    assert key not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_drops_of_a_head_or_a_body_do_not_keep_a_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptiter.endpoint.http_server.IDLE_TIMEOUT_S", 0.4)

    async def drip(port: int, start: bytes, drop: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        reading = asyncio.create_task(reader.read())
        try:
            while not reading.done():
                writer.write(drop)
                await asyncio.sleep(0.05)
        except ConnectionError:
            pass
        writer.close()
        try:
            return await reading
        except ConnectionError:
            return b""

    head = b"POST / HTTP/1.1\r\nHost: x\r\n"
    complete = head + b"Content-Length: 1\r\n\r\nx"
    async with serve(body_timeout_s=0.4, head_timeout_s=0.4) as (_, port):
        found = await asyncio.wait_for(
            asyncio.gather(
                drip(port, head, b"X: y\r\n"),
                drip(port, head + b"Content-Length: 1000\r\n\r\n", b"x"),
                drip(port, complete + head, b"X: y\r\n"),
                exchange(port, complete.replace(b"Host: x", b"Host: x\r\nConnection: close")),
            ),
            30,
        )
    assert [each[:12] for each in found] in (
        [b"", b"HTTP/1.1 408", b"HTTP/1.1 200", b"HTTP/1.1 200"],
        [b"", b"", b"HTTP/1.1 200", b"HTTP/1.1 200"],  # what it sent after the answer broke the connection
    )
