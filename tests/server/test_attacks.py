"""What an attacker may send to a server: nothing is opened, nothing leaks, nothing breaks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from promptiter.manager import ConfiguredApp, Manager
from promptiter.runs.folder_store import FolderStore
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.sql.store import SqlStore
from promptiter.runs.store import Store
from promptiter.server.tokens import SCOPES, Scope, TokenEntry, Tokens, hash_token
from promptiter.testing.small_run import SmallRun
from tests.server.conftest import DESK, NOW, Client, SmallApp, make_tokens, serving
from tests.server.served_project import write_project
from traces.model import Json

pytestmark = pytest.mark.slow

KNOWN_PACKAGES = (*sys.stdlib_module_names, "promptiter", "traces", "pydantic", "orjson", "attacked_agent")

BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""Leases name the start of the machine."""

OPEN_ROUTES = {("GET", "/health"), ("GET", "/promptiter/v1/openapi.json")}
"""Routes that need no token."""

STRANGE = (
    "..",
    "../..",
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e%2f",
    "/etc/passwd",
    "a/../../b",
    "..\\..\\windows",
    "\x00",
    "run\x00.json",
    "\r\nSet-Cookie: a=b",
    "x" * 5_000,
    "٣" * 300,
    "\u202e\ufeff",
    "NUL",
    "~",
    "~root",
    "$(id)",
    "${HOME}",
    "' OR 1=1 --",
    "'; DROP TABLE promptiter_runs; --",
    '" OR ""="',
    "%' ESCAPE '!",
    "run.json",
    "lock",
    "\ud800",
)
"""Names that are none: of files, of SQL, of headers."""


@pytest.fixture(params=["memory", "folder", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "folder":
        return FolderStore(tmp_path / "runs")
    url = f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else request.getfixturevalue("postgresql_url")
    return SqlStore(url)


async def test_names_that_are_paths_or_sql_or_headers_are_unknown_names(store: Store, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"secret": 1}')
    app = f"desk{abs(hash(tmp_path))}"
    async with serving(Manager([SmallApp(SmallRun(), app)], store=store)) as client:
        base = f"/promptiter/v1/apps/{app}"
        kept = (await client.post(f"{base}/runs")).json()["result"]["measured"]["run_id"]
        for name in STRANGE:
            for text in dict.fromkeys((escape(name), escape(escape(name)))):
                for method, place in (
                    ("GET", f"/promptiter/v1/apps/{text}/async-runs"),
                    ("POST", f"/promptiter/v1/apps/{text}/async-runs"),
                    ("GET", f"{base}/async-runs/{text}"),
                    ("GET", f"{base}/async-runs/{text}/events"),
                    ("POST", f"{base}/async-runs/{text}/cancel"),
                    ("POST", f"{base}/async-runs/{text}/resume"),
                    ("DELETE", f"{base}/async-runs/{text}"),
                    ("GET", f"{base}/async-runs/{kept}/traces/{text}"),
                ):
                    answer = await client.request(method, place)
                    assert answer.status_code in (404, 405), (method, place, answer.text)
                    assert "set-cookie" not in answer.headers
                    check_error(answer.text, tmp_path)
        [listed] = (await client.get(f"{base}/async-runs")).json()["runs"]
        assert listed["run_id"] == kept


async def test_filters_are_taken_literally(store: Store, tmp_path: Path) -> None:
    app = f"desk{abs(hash(tmp_path))}"
    async with serving(Manager([SmallApp(SmallRun(), app)], store=store)) as client:
        place = f"/promptiter/v1/apps/{app}/async-runs"
        run_id = (await client.post(f"/promptiter/v1/apps/{app}/runs")).json()["result"]["measured"]["run_id"]
        pattern = run_id.replace("-", "_")  # LIKE would find it
        for text in (*STRANGE[:-1], "-", "%", "_", pattern, "2026%", "%25", "*", "[0-9]", "\\", "!"):
            for name in ("text", "cursor"):
                answer = await client.get(place, params={name: text})
                assert answer.status_code in (200, 422), (name, text, answer.text)
                if answer.status_code == 200 and name == "text":
                    assert len(answer.json()["runs"]) == (text in run_id), text
                check_error(answer.text, tmp_path)
        for name in ("status", "verdict", "limit", "created_from", "created_before"):
            for text in ("' OR 1=1 --", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "1e400", "\x00"):
                answer = await client.get(place, params={name: text})
                assert answer.status_code in (200, 422), (name, text, answer.text)


@pytest.mark.parametrize(
    "number",
    ["²", "٣", "9" * 5000, "-1", "1e3", "0x10", "1\t2", "NaN", "\x00", "' OR 1=1", " 3 ", "99999999999999999999"],
)
async def test_strange_numbers_of_events_are_refused(number: str) -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        place = (await client.post(f"{DESK}/async-runs")).headers["location"]
        await client.get(f"{place}/events")
        answer = await client.get(f"{place}/events", headers=[(b"Last-Event-ID", number.encode())])
        assert answer.status_code == 422
        assert "last-event-id" in answer.json()["error"]
        assert (await client.get(f"{place}/events", params={"after": number})).status_code in (200, 422)


async def test_every_route_refuses_who_may_not_use_it() -> None:
    """New routes are tested, too: those that need no token are listed above."""
    tokens = Tokens(
        (
            *make_tokens(reader=("read",), runner=("run",), boss=("admin",)).entries,
            make_entry("old", expires=NOW - timedelta(seconds=1)),
            make_entry("other", apps=frozenset(["shop"])),
        ),
        now=lambda: NOW,
    )
    async with serving(Manager([SmallApp(SmallRun())]), tokens=tokens) as client:
        document = (await client.get("/promptiter/v1/openapi.json")).json()
        routes = [(method.upper(), path) for path, each in document["paths"].items() for method in each]
        assert len(routes) >= 13
        for method, path in routes:
            place = path.format(app="desk", run_id="gone", digest="gone")
            missing = await client.request(method, place)
            if (method, path) in OPEN_ROUTES:
                assert missing.status_code == 200
                continue
            refused = [
                missing,
                await client.request(method, place, params={"token": "boss", "access_token": "boss"}),
                await client.request(method, place, headers={"Cookie": "token=boss; Authorization=Bearer boss"}),
                await client.request(method, place, headers={"X-Api-Key": "boss"}),
                *[
                    await ask(client, method, place, name)
                    for name in ("wrong", "old", hash_token("boss"), "boss x", "")
                ],
            ]
            assert {each.status_code for each in refused} == {401}, (method, path)
            scope = find_scope(method, path)
            for name, has in (("reader", "read"), ("runner", "run"), ("boss", "admin")):
                may = SCOPES.index(has) >= SCOPES.index(scope)
                status = (await ask(client, method, place, name)).status_code
                assert (status != 403) == may, (method, path, name)
                assert status != 401
            if "{app}" in path:
                assert (await ask(client, method, place, "other")).status_code == 403
        assert (await client.get("/health")).json()["apps"] == []


def find_scope(method: str, path: str) -> Scope:
    """What a route must need, by what it does: a new route that needs less fails the test."""
    if method == "DELETE" or path == "/metrics":
        return "admin"
    return "read" if method == "GET" else "run"


HOSTILE: list[dict[str, Json]] = [
    {"train": "file:///etc/passwd"},
    {"train": "/etc/passwd"},
    {"train": "http://169.254.169.254/latest/meta-data"},
    {"train": {"cases": [{"file": "/etc/passwd"}]}},
    {"train": {"cases": "/etc/passwd"}},
    {"train": {"id": "../../x", "cases": [{"input": "file:///etc/passwd", "expected": "${SECRET}"}]}},
    {"train": {"cases": [{"input": "x", "metadata": {"file": "/etc/passwd", "url": "http://169.254.169.254"}}]}},
    {"train": {"cases": [{"input": "x", "state": {"__import__": "os"}, "turn_config": {"grader": "os:system"}}]}},
    {"train": {"cases": [{"input": "x", "context": [{"role": "user", "content": [{"image_url": "http://evil"}]}]}]}},
    {"train": {"cases": [{"input": "x", "attachments": ["/etc/passwd"]}]}},
    {"train": {"cases": [{"conversation_scenario": {"starting_prompt": "x"}}]}},
    {"train": {"cases": [{"input": "x", "evaluations": [{"type": "code", "grader": "os:system"}]}]}},
    {"metrics": "metrics.json"},
    {"metrics": "os:system"},
    {"judge": "gpt-4o"},
    {"judge": "os:system"},
    {"teacher": "http://evil.example/v1"},
    {"initial_profile": "/etc/passwd"},
    {"initial_profile": {"values": {"echo#model": "huggingface/http://169.254.169.254"}}},
    {"initial_profile": {"values": {"echo#model": "gpt-4o"}}},
    {"initial_profile": {"values": {"echo#instruction": {"file": "/etc/passwd"}}}},
    {"initial_profile": {"values": {"echo#instruction": "{{7*7}} ${SECRET} {env:SECRET} {SECRET}"}}},
    {"initial_profile": {"values": {"echo#examples": [{"file": "/etc/passwd"}]}}},
    {"targets": ["${SECRET}", "{env:SECRET}", "{{SECRET}}", "$SECRET", "%(SECRET)s"]},
    {"acceptance": {"constraints": [{"figure": "os:system", "at_most": 1}]}},
    {"acceptance": {"protected": ["${SECRET}"]}},
    {"stop": {"stop_file": "/etc/passwd"}},
    {"stop": {"required_metrics": ["${SECRET}", "os:system"]}},
    {"evaluation": {"executor": "os:system"}},
    {"agent": {"remote": "http://169.254.169.254"}},
    {"models": {"x": {"api_base": "http://169.254.169.254"}}},
    {"budget": {"max_usd": "${SECRET}"}},
    {"seed": "!!python/object/apply:os.system [id]"},
    {"<<": "*x", "&x": 1},
]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project. There is one for all tests, since a process imports a module of its name only once."""
    return write_project(tmp_path_factory.mktemp("project") / "attacked")


async def test_no_field_of_a_request_opens_anything(attacked: Path) -> None:
    """Files of the project are opened, and nothing else: no other file, no address, no module, no process."""
    app = ConfiguredApp(attacked, environ={"SECRET": "hunter2"})
    async with serving(Manager([app], store=MemoryStore())) as client:
        place = "/promptiter/v1/apps/attacked/async-runs"
        await wait_for_end(client, await client.post(place, json={"run": {"train": {"cases": [{"input": "warm"}]}}}))
        with watching() as opened:
            for run in HOSTILE:
                answer = await client.post(place, json={"run": run})
                await wait_for_end(client, answer)
                check_error(answer.text, attacked)
                assert "hunter2" not in answer.text, run
        outside = [each for each in opened if not is_expected(each, attacked)]
        assert outside == []
        for listed in (await client.get(place)).json()["runs"]:
            result = (await client.get(f"{place}/{listed['run_id']}")).text
            assert "hunter2" not in result
            assert "root:x:" not in result


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"train": {"cases": [{"input": "x"}] * 10_001}}, "more than 10,000 items"),
        ({"targets": ["x"] * 1_001}, "at most 1,000"),
        ({"train": ["train"] * 101}, "at most 100"),
        ({"evaluation": {"repeats": 101}}, "at most 100"),
        ({"acceptance": {"sigma_gain": {"repeats": 101}}}, "give at most 100"),
        ({"acceptance": {"sigma_gain": {"folds": 101}}}, "give at most 100"),
        ({"train": {"cases": [{"input": "x" * 5_000_000}]}}, "larger than 4,000,000 bytes"),
        ({f"key{number}": 1 for number in range(1_000)}, "unknown key"),
    ],
    ids=["cases", "targets", "sets", "repeats", "sweeps", "folds", "bytes", "keys"],
)
async def test_requests_that_ask_for_too_much_are_refused_in_words(
    attacked: Path, run: dict[str, Json], words: str
) -> None:
    app = ConfiguredApp(attacked, environ={})
    async with serving(Manager([app])) as client:
        answer = await client.post("/promptiter/v1/apps/attacked/async-runs", json={"run": run})
        assert answer.status_code in (400, 413), answer.text[:500]
        assert words in answer.json()["error"]
        assert len(answer.content) < 100_000


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"run": {"seed": NaN}}', "application/json", 400),
        (b'{"run": {"seed": Infinity}}', "application/json", 400),
        (b'{"run": {"acceptance": {"min_gain": 1e400}}}', "application/json", 400),
        (b'{"run": {"seed": ' + b"1" * 400 + b"}}", "application/json", 400),
        (b'{"run": {"seed": ' + b"1" * 19 + b"}}", "application/json", 201),
        (b'{"run": {"judge": "\\ud800"}}', "application/json", 400),
        (b'{"run": {"judge": "\xff"}}', "application/json", 400),
        (b'\xef\xbb\xbf{"run": {}}', "application/json", 400),
        (b'{"run": {}} {"run": {}}', "application/json", 400),
        (b'{"run": {"seed": 1}, "run": {"seed": "x"}}', "application/json", 400),
        (b'{"run": {}}', "APPLICATION/JSON; charset=utf-8", 201),
        (b'{"run": {}}', "text/plain", 415),
        (b'{"run": {}}', "application/x-www-form-urlencoded", 415),
        (b"run: {seed: &a 1}", "application/yaml", 415),
        (b"<run/>", "application/xml", 415),
        (b"", "text/plain", 201),
    ],
)
async def test_bodies_that_are_not_quite_json_are_refused(body: bytes, kind: str, status: int) -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        answer = await client.post(f"{DESK}/async-runs", content=body, headers={"Content-Type": kind})
        assert answer.status_code == status, answer.text
        check_error(answer.text, Path("/nowhere"))


async def test_the_secrets_of_an_app_stay_with_it(tmp_path: Path) -> None:
    """Results, events, errors, lists and measures show no API key, of no app."""
    project = write_project(tmp_path / "keyed")
    config = project / "promptiter.yaml"
    model = "openai/other: {api_key: '${KEY}', api_base: 'http://127.0.0.1:9/v1'}"
    config.write_text(config.read_text().replace("models: {", f"models: {{{model}, "))
    secret = "sk-hunter2-0123456789abcdef"
    apps = [
        ConfiguredApp(project, environ={"KEY": secret}),
        ConfiguredApp(write_project(tmp_path / "keyless"), environ={}),
    ]
    async with serving(Manager(apps)) as client:
        seen: list[str] = []
        for app in ("keyed", "keyless"):
            base = f"/promptiter/v1/apps/{app}"
            started = await client.post(f"{base}/async-runs")
            await wait_for_end(client, started)
            place = started.headers["location"]
            seen += [started.text, (await client.get(place)).text, (await client.get(f"{place}/events")).text]
            seen += [(await client.get(f"{place}/{each}")).text for each in ("result", "report")]
            seen += [(await client.get(f"{base}/structure")).text, (await client.get(f"{base}/async-runs")).text]
        case = {"input": f"The key is {secret}", "expected": secret}
        for run in ({"train": {"cases": [case]}}, {"initial_profile": {"values": {"echo#instruction": secret}}}):
            refused = await client.post("/promptiter/v1/apps/keyed/async-runs", json={"run": run})
            assert (refused.status_code, "contains a secret of the app" in refused.text) == (400, True), refused.text
            seen.append(refused.text)
        seen += [(await client.get("/metrics")).text, (await client.get("/health")).text]
        assert not [text for text in seen if secret in text]


def make_entry(name: str, **fields: Any) -> TokenEntry:
    return TokenEntry(name=name, sha256=hash_token(name), scopes=frozenset(["admin"]), **fields)


async def ask(client: Client, method: str, place: str, token: str) -> Any:
    return await client.request(method, place, headers={"Authorization": f"Bearer {token}"})


def escape(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="").replace(".", "%2E")  # clients resolve dots themselves


def check_error(text: str, folder: Path) -> None:
    """An answer names no place of the server, and has no traceback."""
    for leak in (
        str(folder),
        "Traceback",
        ".py",
        "site-packages",
        "sqlite://",
        "postgresql://",
        "psycopg",
        "sqlalchemy",
    ):
        assert leak not in text, text[:1000]


async def wait_for_end(client: Client, started: Any) -> None:
    if started.status_code == 201:
        async with asyncio.timeout(30):
            await client.get(f"{started.headers['location']}/events")


_watchers: list[Callable[[str, tuple[Any, ...]], None]] = []


@cache
def begin_audit() -> None:
    """An audit hook cannot be removed, so there is one for all tests."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        for watcher in _watchers:
            watcher(event, arguments)

    sys.addaudithook(audit)


@contextmanager
def watching() -> Iterator[list[tuple[str, str]]]:
    """What this process opens meanwhile: files, addresses, modules, processes."""
    begin_audit()
    seen: list[tuple[str, str]] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "import", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system"):
            seen.append((event, str(arguments[1] if event == "socket.connect" else arguments[0])))

    _watchers.append(watch)
    try:
        yield seen
    finally:
        _watchers.remove(watch)


def is_expected(opened: tuple[str, str], project: Path) -> bool:
    event, name = opened
    if event == "open":
        return name.startswith((str(project), sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))) or (
            name.isdigit() or name in ("/dev/null", "/dev/urandom", BOOT_ID)
        )
    return event == "import" and name.partition(".")[0] in KNOWN_PACKAGES
