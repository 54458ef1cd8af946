"""Web pages of other sites cannot use a server without tokens, and requests are counted."""

from __future__ import annotations

import pytest

from promptiter.manager import Manager
from promptiter.structure import StructureSnapshot
from promptiter.testing.small_run import SmallRun
from tests.server.conftest import DESK, SmallApp, make_tokens, serving

pytestmark = pytest.mark.slow

PAGE = "https://page.example"


@pytest.mark.parametrize("origin", [PAGE, "null", "http://testserver:81", "http://testserver.evil.example", "http://["])
async def test_requests_of_other_sites_are_refused_without_tokens(origin: str) -> None:
    app = SmallApp(SmallRun())
    async with serving(Manager([app])) as client:
        for method, place in (("POST", f"{DESK}/async-runs"), ("GET", f"{DESK}/structure"), ("OPTIONS", DESK)):
            refused = await client.request(method, place, headers={"Origin": origin})
            assert refused.status_code == 403
            assert "access-control-allow-origin" not in refused.headers
        own = await client.get(f"{DESK}/structure", headers={"Origin": "http://testserver"})
        assert own.status_code == 200
    assert app.asked == []


async def test_allowed_origins_are_exact() -> None:
    async with serving(Manager([SmallApp(SmallRun())]), cors_origins=[PAGE]) as client:
        allowed = await client.get(f"{DESK}/structure", headers={"Origin": PAGE})
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
        asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
        assert (await client.options(f"{DESK}/async-runs", headers=asked)).status_code == 200
        for other in ("https://page.example.evil", "http://page.example", "https://page.example:444", "*"):
            refused = await client.get(f"{DESK}/structure", headers={"Origin": other})
            assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (403, False)


async def test_with_tokens_pages_need_one_and_get_no_access_by_default() -> None:
    async with serving(Manager([SmallApp(SmallRun())]), tokens=make_tokens(key=("read",))) as client:
        origin = {"Origin": PAGE}
        assert (await client.get(f"{DESK}/structure", headers=origin)).status_code == 401
        answer = await client.get(f"{DESK}/structure", headers={**origin, "Authorization": "Bearer key"})
        assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (200, False)


async def test_with_tokens_health_and_the_description_of_the_api_need_none_and_name_no_app() -> None:
    async with serving(Manager([SmallApp(SmallRun())]), tokens=make_tokens(key=("read",))) as client:
        for place in ("/", "/health", "/promptiter/v1/openapi.json"):
            answer = await client.get(place)
            assert (answer.status_code, '"desk"' in answer.text) == (200, False)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8788", 200),
        ("LOCALHOST", 200),
        ("[::1]:8788", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost@evil.example", 403),
        ("", 403),
        ("[", 403),
    ],
)
async def test_without_tokens_only_names_of_this_machine_lead_to_the_server(host: str, status: int) -> None:
    hosts = ("127.0.0.1", "localhost", "::1")
    async with serving(Manager([SmallApp(SmallRun())]), hosts=hosts) as client:
        assert (await client.get(f"{DESK}/structure", headers={"Host": host})).status_code == status


async def test_invented_methods_and_places_are_counted_together() -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        for number in range(20):
            await client.request(f"METHOD{number}", f"/place/{number}")
        text = (await client.get("/metrics")).text
        assert 'promptiter_http_requests_total{method="other",route="unknown",status="404"} 20' in text
        assert "METHOD1" not in text


async def test_an_unexpected_error_is_answered_without_its_text() -> None:
    class BrokenApp(SmallApp):
        def describe(self) -> StructureSnapshot:
            raise RuntimeError("the password is hunter2")

    async with serving(Manager([BrokenApp(SmallRun())])) as client:
        failed = await client.get(f"{DESK}/structure")
        assert (failed.status_code, failed.json()) == (500, {"error": "the server failed; its log says why"})
