"""Who may do what at a server."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.manager import Manager
from promptiter.server.tokens import SCOPES, Refusal, Scope, TokenEntry, Tokens, add_token, hash_token
from promptiter.testing.small_run import SmallRun
from tests.server.conftest import DESK, NOW, SmallApp, make_tokens, serving

pytestmark = pytest.mark.slow

TOKENS = Tokens(
    (
        *make_tokens(reader=("read",), runner=("run",), boss=("admin",)).entries,
        TokenEntry(name="old", sha256=hash_token("old"), scopes=frozenset(["admin"]), expires=NOW),
        TokenEntry(
            name="new", sha256=hash_token("new"), scopes=frozenset(["read"]), expires=NOW + timedelta(seconds=1)
        ),
        TokenEntry(name="other", sha256=hash_token("other"), scopes=frozenset(["admin"]), apps=frozenset(["shop"])),
    ),
    now=lambda: NOW,
)


@pytest.mark.parametrize(
    ("header", "status", "words"),
    [
        (None, 401, "a token is required"),
        ("", 401, "a token is required"),
        ("Bearer", 401, "a token is required"),
        ("Bearer ", 401, "a token is required"),
        ("Basic reader", 401, "a token is required"),
        ("Bearer wrong", 401, "not known"),
        ("Bearer reader2", 401, "not known"),
        (f"Bearer {hash_token('reader')}", 401, "not known"),
        ("Bearer \udcff", 401, "not known"),
        ("Bearer old", 401, "expired at 2026-11-18T00:00:00"),
        ("Bearer other", 403, "not for the app 'desk'"),
    ],
)
def test_a_token_must_be_known_valid_and_for_the_app(header: str | None, status: int, words: str) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        TOKENS.check(header, "read", "desk")
    assert refused.value.status == status


def test_wider_scopes_cover_narrower_ones() -> None:
    may = {
        (name, scope)
        for name in ("reader", "runner", "boss")
        for scope in SCOPES
        if _is_allowed(f"Bearer {name}", scope)
    }
    assert may == {
        ("reader", "read"),
        *(("runner", scope) for scope in ("read", "run")),
        *(("boss", scope) for scope in ("read", "run", "admin")),
    }
    assert TOKENS.check("bearer new", "read", "desk").name == "new"
    assert TOKENS.check("Bearer other", "admin", "shop").name == "other"


def _is_allowed(header: str, scope: Scope) -> bool:
    with suppress(Refusal):
        TOKENS.check(header, scope, "desk")
        return True
    return False


async def test_every_route_needs_its_scope() -> None:
    one = f"{DESK}/async-runs/gone"
    routes = {
        ("GET", f"{DESK}/structure"): "read",
        ("GET", f"{DESK}/async-runs"): "read",
        ("GET", one): "read",
        ("GET", f"{one}/result"): "read",
        ("GET", f"{one}/events"): "read",
        ("GET", f"{one}/report"): "read",
        ("GET", f"{one}/archive"): "read",
        ("GET", f"{one}/traces/x"): "read",
        ("GET", f"{one}/refinements"): "read",
        ("POST", f"{DESK}/runs"): "run",
        ("POST", f"{DESK}/async-runs"): "run",
        ("POST", f"{one}/cancel"): "run",
        ("POST", f"{one}/resume"): "run",
        ("POST", f"{one}/stop"): "run",
        ("POST", f"{one}/refine"): "run",
        ("DELETE", one): "admin",
        ("GET", "/metrics"): "admin",
    }
    small = SmallApp(SmallRun())
    async with serving(Manager([small]), tokens=TOKENS) as client:
        document = (await client.get("/promptiter/v1/openapi.json")).json()
        known = {(method.upper(), path) for path, each in document["paths"].items() for method in each}
        tested = {
            (
                method,
                path.replace("desk", "{app}", 1).replace("gone", "{run_id}").replace("traces/x", "traces/{digest}"),
            )
            for method, path in routes
        }
        assert known == {*tested, ("GET", "/health")}, "a route without a test of its scope"
        for (method, path), scope in routes.items():
            missing = await client.request(method, path)
            assert (missing.status_code, missing.headers["www-authenticate"]) == (401, "Bearer"), path
            for name, level in (("reader", 0), ("runner", 1), ("boss", 2)):
                answer = await client.request(method, path, headers={"Authorization": f"Bearer {name}"})
                is_allowed = level >= ("read", "run", "admin").index(scope)
                assert (answer.status_code != 403) == is_allowed, (method, path, name)
            other = await client.request(method, path, headers={"Authorization": "Bearer other"})
            assert (other.status_code == 403) == path.startswith(DESK)
        assert (await client.get("/health")).json()["apps"] == [], "apps are not told to everyone"


async def test_a_misspelled_app_is_guessed_for_those_who_may_see_all_apps() -> None:
    entries = make_tokens(everyone=("read",), some=("read",)).entries
    tokens = Tokens((entries[0], entries[1].model_copy(update={"apps": frozenset(["dsek"])})), now=lambda: NOW)
    guessed, silent = "unknown app 'dsek' (did you mean 'desk'?)", "unknown app 'dsek'"
    for known, token, message in ((None, "", guessed), (tokens, "everyone", guessed), (tokens, "some", silent)):
        async with serving(Manager([SmallApp(SmallRun())]), tokens=known) as client:
            for path in ("structure", "async-runs", "async-runs/gone"):
                place, headers = f"/promptiter/v1/apps/dsek/{path}", {"Authorization": f"Bearer {token}"}
                answer = await client.get(place, headers=headers)
                assert (answer.status_code, answer.json()["error"]) == (404, message)


def test_a_file_keeps_hashes_only(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    first = add_token(file, name="ci", scope="run", apps=["desk"], expires=NOW + timedelta(days=1))
    second = add_token(file, name="boss", scope="admin", apps=None, expires=NOW + timedelta(days=1))
    assert first not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    tokens = Tokens(Tokens.load(file).entries, now=lambda: NOW)
    assert tokens.check(f"Bearer {first}", "run", "desk").name == "ci"
    assert tokens.check(f"Bearer {second}", "admin", "shop").name == "boss"
    with pytest.raises(SetupError, match="has a token 'ci'"):
        add_token(file, name="ci", scope="read", apps=None, expires=NOW)


@pytest.mark.parametrize(
    "text",
    [
        "tokens: [{name: ci}]",
        "tokens: [{name: ci, sha256: secret-token, scopes: [read]}]",
        f"tokens: [{{name: ci, sha256: {'0' * 64}, scopes: [write]}}]",
        f"tokens: [{{name: ci, sha256: {'0' * 64}, scopes: [read], expires: 2027-01-01T00:00:00}}]",
        "[]",
    ],
)
def test_a_wrong_file_is_refused_without_its_secrets(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(text)
    with pytest.raises(SetupError, match=r"tokens\.yaml") as refused:
        Tokens.load(file)
    assert "secret-token" not in str(refused.value)


async def test_the_metrics_of_other_apps_are_not_shown() -> None:
    entries = (
        TokenEntry(name="all", sha256=hash_token("all"), scopes=frozenset(["admin"])),
        TokenEntry(name="one", sha256=hash_token("one"), scopes=frozenset(["admin"]), apps=frozenset(["shop"])),
    )
    apps = [SmallApp(SmallRun(), name) for name in ("desk", "shop")]
    async with serving(Manager(apps), tokens=Tokens(entries)) as client:
        for token, shows_desk in (("all", True), ("one", False)):
            text = (await client.get("/metrics", headers={"Authorization": f"Bearer {token}"})).text
            assert ('app="desk"' in text, 'app="shop"' in text) == (shows_desk, True)
