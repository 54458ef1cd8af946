"""The routes of the HTTP API."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from promptiter.errors import ChangedInputsError, StoreError
from promptiter.manager import Manager
from promptiter.manager.app import PreparedRun
from promptiter.runlog.results import RunResult
from promptiter.runs.header import RunHeader
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.run_list import RunPage, RunQuery
from promptiter.server.limits import Limits
from promptiter.structure import StructureSnapshot
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import wait_until
from tests.manager.test_manager import GatedRun, expected_result
from tests.server.conftest import DESK, SmallApp, serving

pytestmark = pytest.mark.slow


async def test_the_structure_of_an_app() -> None:
    small = SmallRun()
    async with serving(Manager([SmallApp(small)])) as client:
        found = (await client.get(f"{DESK}/structure")).json()["structure"]
        assert StructureSnapshot.from_json(found) == small.engine.describe()
        assert [each["id"] for each in found["surfaces"]] == list(small.engine.describe().surface_ids)


async def test_a_blocking_run_returns_its_result() -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        found = await client.post(f"{DESK}/runs", json={"run": {}})
        assert found.status_code == 200
        assert RunResult.from_json(orjson.dumps(found.json()["result"])) == await expected_result()


async def test_a_run_is_started_got_streamed_listed_and_deleted() -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        started = await client.post(f"{DESK}/async-runs")
        assert (started.status_code, started.json()["result"]["status"]) == (201, "queued")
        place = started.headers["location"]
        events = parse_events((await client.get(f"{place}/events")).text)
        assert [each["id"] for each in events[:-1]] == [str(number) for number in range(len(events) - 1)]
        assert (events[0]["event"], events[-2]["event"]) == ("run_started", "run_completed")
        assert events[-1] == {"event": "end", "data": '{"status":"succeeded"}'}
        later = await client.get(f"{place}/events", headers={"Last-Event-ID": "3"})
        assert parse_events(later.text) == events[4:]
        assert parse_events((await client.get(f"{place}/events?after=3")).text) == events[4:]
        for address in (place, f"{place}/result"):
            got = (await client.get(address)).json()["result"]
            assert (got["status"], len(got["rounds"])) == ("succeeded", 2)
        digest = got["baseline"]["rows"][0]["trace_digests"][0]
        trace = await client.get(f"{place}/traces/{digest}")
        assert trace.json()["steps"]
        assert (await client.get(f"{place}/traces/none")).status_code == 404
        [listed] = (await client.get(f"{DESK}/async-runs")).json()["runs"]
        assert (listed["status"], listed["rounds"], place.endswith(listed["run_id"])) == ("succeeded", 2, True)
        assert (await client.delete(place)).status_code == 204
        assert (await client.get(place)).status_code == 404
        assert (await client.get(f"{DESK}/async-runs")).json() == {"runs": [], "next_cursor": None}


async def test_a_run_in_progress_is_shown_so_far_and_can_be_cancelled_and_resumed() -> None:
    gated = GatedRun(free=6)
    async with serving(Manager([SmallApp(gated)])) as client:
        place = (await client.post(f"{DESK}/async-runs")).headers["location"]
        await gated.waits.wait()
        got = (await client.get(place)).json()["result"]
        assert (got["status"], len(got["rounds"])) == ("running", 2)
        assert (await client.get(f"{place}/result")).status_code == 409
        assert (await client.delete(place)).status_code == 409
        cancelled = await client.post(f"{place}/cancel")
        assert (cancelled.status_code, cancelled.json()["result"]["status"]) == (202, "cancelled")
        assert (await client.get(f"{place}/result")).json()["result"]["status"] == "cancelled"
        gated.gate.set()
        assert (await client.post(f"{place}/resume")).status_code == 202
        await client.get(f"{place}/events")
        assert (await client.get(place)).json()["result"]["status"] == "succeeded"
        for action in ("cancel", "resume"):
            assert (await client.post(f"{place}/{action}")).status_code == 409


async def test_a_blocking_run_that_takes_too_long_goes_on() -> None:
    gated = GatedRun()
    async with serving(Manager([SmallApp(gated)]), limits=Limits(run_timeout_s=0.05)) as client:
        late = await client.post(f"{DESK}/runs")
        assert late.status_code == 504
        place = late.json()["error"].partition("GET ")[2]
        gated.gate.set()
        await client.get(f"{place}/events")
        assert (await client.get(place)).json()["result"]["status"] == "succeeded"


async def test_lists_have_pages_and_filters() -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        for _ in range(3):
            await client.post(f"{DESK}/runs")
        first = (await client.get(f"{DESK}/async-runs", params={"limit": 2})).json()
        then = (await client.get(f"{DESK}/async-runs", params={"limit": 2, "cursor": first["next_cursor"]})).json()
        assert ([len(each["runs"]) for each in (first, then)], then["next_cursor"]) == ([2, 1], None)
        counts: list[tuple[dict[str, Any], int]] = [
            ({"status": "succeeded"}, 3),
            ({"status": ["failed", "cancelled"]}, 0),
            ({"verdict": "no_evidence"}, 3),
            ({"created_from": "2020-01-01T00:00:00Z"}, 3),
            ({"created_before": "2020-01-01T00:00:00Z"}, 0),
            ({"text": "~2"}, 1),
        ]
        for params, count in counts:
            found = await client.get(f"{DESK}/async-runs", params=params)
            assert len(found.json()["runs"]) == count, params
        for wrong in ("limit=0", "limit=x", "status=gone", "created_from=yesterday"):
            assert (await client.get(f"{DESK}/async-runs?{wrong}")).status_code == 422, wrong


async def test_what_a_request_changes_reaches_the_app_in_its_own_words() -> None:
    app = SmallApp(SmallRun())
    async with serving(Manager([app])) as client:
        run: dict[str, Any] = {
            "train_eval_set_ids": ["a"],
            "validation_eval_set_ids": ["b"],
            "target_surface_ids": ["clerk#instruction"],
            "acceptance_policy": {"min_score_gain": 0.005},
            "stop_policy": {"max_rounds_without_acceptance": 5, "target_score": 1.0},
            "evaluation_options": {"eval_case_parallelism": 8, "eval_case_parallel_inference_enabled": True},
            "initial_profile": {"structure_id": "s", "overrides": [{"surface_id": "clerk#instruction", "value": "x"}]},
            "max_rounds": 4,
        }
        assert (await client.post(f"{DESK}/async-runs", json={"run": run})).status_code == 201
        assert app.asked == [
            {
                "train": ["a"],
                "validation": ["b"],
                "targets": ["clerk#instruction"],
                "acceptance": {"min_gain": 0.005},
                "stop": {"patience": 5, "target_score": 1.0},
                "evaluation": {"concurrency": 8},
                "initial_profile": {"structure_id": "s", "values": {"clerk#instruction": "x"}},
                "max_rounds": 4,
            }
        ]
        twice = await client.post(f"{DESK}/async-runs", json={"run": {"targets": ["a"], "target_surface_ids": ["b"]}})
        assert (twice.status_code, twice.json()["problems"]) == (
            400,
            ["body: run.target_surface_ids is the same as run.targets; give one of them"],
        )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"run": 1}', 400),
        (b'{"runs": {}}', 400),
        (b'{"run": {"max_rounds": -1}}', 400),
        (b'{"run": {"agent": "os:system"}}', 400),
        (b"[" * 100 + b"]" * 100, 400),
        (b"[" * 100_000 + b"]" * 100_000, 400),
        (b"\xff\xfe", 400),
        (b'"' + b"x" * 2_000_000 + b'"', 413),
    ],
)
async def test_wrong_bodies_are_refused_in_words(body: bytes, status: int) -> None:
    app = SmallApp(SmallRun())
    async with serving(Manager([app]), limits=Limits(max_body_bytes=1_000_000)) as client:
        for address in ("runs", "async-runs"):
            refused = await client.post(f"{DESK}/{address}", content=body)
            assert (refused.status_code, bool(refused.json()["error"])) == (status, True)
    assert app.asked == []


async def test_a_body_of_very_many_small_parts_is_refused_before_it_is_parsed() -> None:
    limits = Limits(max_containers=10)
    async with serving(Manager([SmallApp(SmallRun())]), limits=limits) as client:
        for body, status in (
            (b'{"run": {"a": [[], [], [], [], [], [], [], [], []]}}', 400),
            (b'{"run": {"initial_profile": {"values": {"a": "[[[[{{{{[[[[ \\" [[[["}}}}', 201),
            (b'{"a": "' + b'\\"[' * 20, 400),
        ):
            answer = await client.post(f"{DESK}/async-runs", content=body)
            assert answer.status_code == status, answer.text
        assert "is not JSON" in answer.json()["error"]


async def test_the_answer_to_a_wrong_body_does_not_repeat_it() -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        long = "x" * 500_000
        for run in ({long: 1}, {"train": {"cases": [{}], long: 1}}, {"initial_profile": {"values": {}, long: 1}}):
            refused = await client.post(f"{DESK}/async-runs", json={"run": run})
            assert (refused.status_code, len(refused.content) < 3_000) == (400, True)


async def test_streams_are_limited_also_if_they_begin_at_the_same_time() -> None:
    gated = GatedRun(free=4)
    async with serving(Manager([SmallApp(gated)]), limits=Limits(max_streams=2)) as client:
        for _ in range(3):
            assert (await client.get(f"{DESK}/async-runs/missing/events")).status_code == 404
        run_id = (await client.post(f"{DESK}/async-runs")).json()["result"]["measured"]["run_id"]
        await gated.waits.wait()
        place = f"{DESK}/async-runs/{run_id}/events"
        streams = [asyncio.create_task(client.get(place)) for _ in range(6)]
        await wait_until(lambda: sum(each.done() for each in streams) == 4)
        gated.gate.set()
        assert sorted([(await each).status_code for each in streams]) == [200, 200, 429, 429, 429, 429]
        assert (await client.get(place)).status_code == 200


async def test_values_of_a_filter_may_be_repeated_but_not_without_end() -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        await client.post(f"{DESK}/runs")
        few, many = "&".join(["status=succeeded"] * 40), "&".join(["status=succeeded"] * 51)
        assert len((await client.get(f"{DESK}/async-runs?{few}")).json()["runs"]) == 1
        refused = await client.get(f"{DESK}/async-runs?{many}")
        assert (refused.status_code, refused.json()["error"][:31]) == (422, "status: must be at most 50 item")


async def test_a_body_without_a_length_is_limited_and_a_slow_one_is_given_up() -> None:
    async def endless() -> Any:
        while True:
            yield b" " * 100_000

    async def slow() -> Any:
        yield b"{"
        await asyncio.sleep(30)
        yield b"}"

    for body, timeout_s, status in ((endless(), 60.0, 413), (slow(), 0.05, 408)):
        limits = Limits(max_body_bytes=1_000_000, body_timeout_s=timeout_s)
        async with serving(Manager([SmallApp(SmallRun())]), limits=limits) as client:
            assert (await client.post(f"{DESK}/async-runs", content=body)).status_code == status


async def test_unknown_places_and_methods() -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        for method, place, status in (
            ("GET", "/promptiter/v1/apps/shop/structure", 404),
            ("POST", "/promptiter/v1/apps/shop/async-runs", 404),
            ("GET", f"{DESK}/async-runs/gone", 404),
            ("POST", f"{DESK}/async-runs/gone/cancel", 404),
            ("GET", f"{DESK}/async-runs/gone/events", 404),
            ("GET", f"{DESK}/async-runs/..%2f..%2fetc", 404),
            ("GET", f"{DESK}/async-runs/%00", 404),
            ("GET", "/etc/passwd", 404),
            ("PUT", f"{DESK}/structure", 405),
            ("PATCH", f"{DESK}/async-runs", 405),
        ):
            found = await client.request(method, place)
            assert (found.status_code, list(found.json())) == (status, ["error"]), place
            assert ("allow" in found.headers) == (status == 405)


async def test_a_client_that_asks_too_often_has_to_wait() -> None:
    async with serving(Manager([SmallApp(SmallRun())]), limits=Limits(requests_per_minute=3)) as client:
        statuses = [(await client.get(f"{DESK}/structure")).status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        assert int((await client.get(f"{DESK}/structure")).headers["retry-after"]) > 0


async def test_a_result_that_is_known_already_is_not_sent_again() -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        place = (await client.post(f"{DESK}/async-runs")).headers["location"]
        await client.get(f"{place}/events")
        for address in (place, f"{place}/result"):
            first = await client.get(address)
            tag = first.headers["etag"]
            for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
                again = await client.get(address, headers={"If-None-Match": known})
                assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert (await client.get(address, headers={"If-None-Match": '"other"'})).content == first.content


async def test_health_and_measures() -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        await client.post(f"{DESK}/runs")
        assert (await client.get("/health")).json()["apps"] == ["desk"]
        text = (await client.get("/metrics")).text
        assert 'promptiter_http_requests_total{method="POST",route="/{app}/runs",status="200"} 1' in text
        assert 'promptiter_runs{app="desk",state="running"} 0' in text
        assert 'promptiter_runs_ended_total{app="desk",status="succeeded"} 1' in text
        assert 'route="unknown"' not in text


async def test_small_places() -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        assert (await client.head("/health")).status_code == 200
        document = (await client.get((await client.get("/")).json()["api"])).json()
        slash = await client.get(f"{DESK}/async-runs/")
        assert (slash.status_code, f"write '{DESK}/async-runs'" in slash.json()["error"]) == (404, True)
        wrong = await client.put(f"{DESK}/structure")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")
        assert "is not a method of '/" in wrong.text
        assert 'route="unknown",status="200"' not in (await client.get("/metrics")).text
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert {each["operationId"] for each in operations} >= {"get_structure", "run", "start_run", "list_runs", "get_run"}
    assert "Successful Response" not in str(document)


async def test_a_server_whose_store_cannot_be_used_is_degraded() -> None:
    is_down = True

    class Store(MemoryStore):
        async def list_runs(self, query: RunQuery) -> RunPage:
            if is_down:
                raise StoreError("the database '/secret/runs.db' cannot be used: disk I/O error")
            return await super().list_runs(query)

        def for_app(self, name: str) -> Store:  # noqa: ARG002
            return self

    manager = Manager([SmallApp(SmallRun())], store=Store(), sweep_s=0.05)
    async with asyncio.timeout(30), serving(manager) as client:
        await wait_until(lambda: bool(manager.problems))
        found = await client.get("/health")
        assert (found.status_code, found.json()["status"]) == (503, "degraded")
        assert "the store cannot be used" in found.json()["error"]
        assert "secret" not in found.text
        is_down = False
        await wait_until(lambda: not manager.problems)
        assert (await client.get("/health")).json()["status"] == "ok"


async def test_a_run_that_cannot_be_continued_is_a_conflict_with_reasons() -> None:
    class Changed(SmallApp):
        def rebuild(self, header: RunHeader) -> PreparedRun:
            raise ChangedInputsError(header.run_id, ["max_rounds was 4 and is now 2", "seed is new: 3"])

    gated = GatedRun(free=3)
    async with serving(Manager([Changed(gated)])) as client:
        place = (await client.post(f"{DESK}/async-runs")).headers["location"]
        await gated.waits.wait()
        await client.post(f"{place}/cancel")
        found = await client.post(f"{place}/resume")
        assert found.status_code == 409
        assert found.json()["problems"] == [
            "its inputs have changed: max_rounds was 4 and is now 2",
            "its inputs have changed: seed is new: 3",
        ]
        assert "promptiter rerun" not in found.text


def parse_events(text: str) -> list[dict[str, str]]:
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.strip().split("\n\n")]


@pytest.mark.parametrize(("body", "status"), [(b"", 201), (b" \r\n\t", 201), (b"\x0b", 400), (b"\x0c {}", 400)])
async def test_a_body_of_white_space_is_empty_only_if_json_knows_it(body: bytes, status: int) -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        sent = await client.post(f"{DESK}/async-runs", content=body, headers={"Content-Type": "application/json"})
        assert sent.status_code == status, sent.text
