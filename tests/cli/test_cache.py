from __future__ import annotations

import asyncio
import io
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from promptiter.llm.cache.cache import Cache, CacheKey, StoredAnswer, ToolAnswer, open_cache
from promptiter.llm.cache.call_log import CallLog
from promptiter.llm.cache.lines import format_line
from promptiter.llm.messages import ModelReply, Role
from tests.cli.conftest import Run
from traces import Usage

PRICED = ModelReply(text="yes", usage=Usage(input_tokens=1000, output_tokens=234, cost_usd=0.25))
UNPRICED = ModelReply(text="yes", usage=Usage(input_tokens=5, output_tokens=1))
UNCOUNTED = ModelReply(text="yes")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["cache.jsonl", "cache.sqlite", "cache.db"])
def path(request: pytest.FixtureRequest, folder: Path) -> Path:
    return folder / str(request.param)


def key(number: int, role: Role = "agent") -> CacheKey:
    return CacheKey(role=role, request_digest=str(number))


def fill(cache: Cache, *more: tuple[Role, StoredAnswer]) -> None:
    answers: list[tuple[Role, StoredAnswer]] = [("agent", PRICED), ("agent", ToolAnswer(["x"])), *more]

    async def put() -> None:
        for number, (role, answer) in enumerate(answers):
            await cache.put(key(number, role), answer)

    asyncio.run(put())


def filled(path: Path, *more: tuple[Role, StoredAnswer]) -> Path:
    with closing(open_cache(path)) as cache:
        fill(cache, *more)
    return path


def entries(path: Path) -> int:
    with closing(open_cache(path)) as cache:
        return cache.stats().entries


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def foreign(folder: Path) -> Iterator[list[Path]]:
    """Files that look like caches by name only."""
    half = filled(folder / "half.jsonl").read_bytes()
    files = {
        "train.jsonl": b'{"input": "a"}\n{"input": "b"}\n',
        "mixed.jsonl": half + b'{"input": "a"}\n',
        "before.jsonl": b'{"input": "a"}\n' + half,
        "unended.jsonl": half + b'{"in',
        "damaged.jsonl": half.replace(b'"v":1', b'"v":3'),
        "text.db": b"not a database at all, but some text of some length" * 40,
    }
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    for name, statement in (("users.sqlite", "CREATE TABLE users (name)"), ("more.sqlite", "CREATE TABLE more (x)")):
        if name == "more.sqlite":
            filled(folder / name)
        with closing(sqlite3.connect(folder / name)) as database:
            database.execute(statement)
    (folder / "folder.db").mkdir()
    paths = [folder / name for name in (*files, "users.sqlite", "more.sqlite")]
    before = {path: path.read_bytes() for path in paths}
    yield paths
    assert {path: path.read_bytes() for path in paths} == before


def test_stats_are_reported_by_role(run: Run, path: Path) -> None:
    filled(path, ("judge", UNPRICED), ("optimizer", PRICED), ("optimizer", UNCOUNTED))
    said = [" ".join(line.split()) for line in run("cache", "stats", path).splitlines()]
    assert said[0].startswith(f"{path.name} 5 answers, ")
    assert said[2:] == [
        "role answers tokens to pay again",
        "agent 2 1,234 $0.2500",
        "judge 1 6 unknown",
        "optimizer 2 1,234 and 1 unknown $0.2500 + 1 call of unknown price",
        "total 5 2,474 and 1 unknown $0.5000 + 2 calls of unknown price",
    ]


def test_stats_as_json(run: Run, path: Path) -> None:
    filled(path, ("judge", UNPRICED))
    said = orjson.loads(run("cache", "stats", path, "--json"))
    assert said.pop("bytes") >= path.stat().st_size > 0
    judge = {"answers": 1, "tokens": 6, "uncounted_answers": 0, "cost_usd": None, "unpriced_answers": 1}
    agent = {"answers": 2, "tokens": 1234, "uncounted_answers": 0, "cost_usd": 0.25, "unpriced_answers": 0}
    assert said == {
        "schema_version": 1,
        "path": str(path),
        "by_role": {"agent": agent, "judge": judge},
        "total": {**agent, "answers": 3, "tokens": 1240, "unpriced_answers": 1},
    }


def test_a_cache_that_does_not_exist_is_not_made(run: Run, path: Path) -> None:
    assert run("cache", "stats", path) == f"nothing is cached yet: {path.name}\n"
    assert orjson.loads(run("cache", "stats", path, "--json"))["total"]["answers"] == 0
    assert run("cache", "clear", path) == f"nothing is cached yet: {path.name}\n"
    assert not path.exists()


def test_a_cache_without_answers_stays(run: Run, path: Path) -> None:
    open_cache(path).close()
    assert "0 answers" in run("cache", "stats", path)
    assert "nothing is cached" in run("cache", "clear", "--yes", path)
    path.write_bytes(b"")
    assert "0 answers" in run("cache", "stats", path)
    assert "nothing is cached" in run("cache", "clear", "--yes", path)
    assert path.exists()


def test_a_torn_line_is_passed_over(run: Run, folder: Path) -> None:
    path = filled(folder / "cache.jsonl")
    whole = path.read_bytes()
    for size in (3, 40):
        path.write_bytes(whole + whole[:size])
        assert "2 answers" in run("cache", "stats", path)


def test_clearing_says_what_goes_and_then_it_is_gone(run: Run, path: Path) -> None:
    filled(path, ("judge", UNPRICED))
    size = path.stat().st_size
    said = run("cache", "clear", "--yes", path)
    assert said.startswith("removes 3 answers, ")
    assert said.endswith(f" in {path.name} (to pay again: $0.2500 + 1 call of unknown price)\n")
    assert run("cache", "stats", path).startswith(("nothing is cached", f"{path.name}  0 answers"))
    assert not path.exists() or path.stat().st_size <= size
    filled(path)
    assert entries(path) == 2


def test_clearing_gives_space_back(run: Run, folder: Path) -> None:
    path = filled(folder / "cache.sqlite", ("agent", ModelReply(text="x" * 1_000_000)))
    assert path.stat().st_size > 1_000_000
    run("cache", "clear", "--yes", path)
    assert path.stat().st_size < 50_000


def test_clearing_wants_a_yes(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "this would remove 2 answers" in (said := run("cache", "clear", path, code=2))
    assert said.endswith("; pass --yes to do it\n")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert run("cache", "clear", path, code=1, stream="out").endswith("nothing was removed\n")
    assert entries(path) == 2
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert run("cache", "clear", path).startswith("removes 2 answers")
    assert not path.exists() or entries(path) == 0


def test_who_uses_the_cache_is_not_disturbed(run: Run, path: Path) -> None:
    with closing(open_cache(path)) as cache:
        fill(cache)
        run("cache", "clear", "--yes", path)
        assert asyncio.run(cache.put(key(7), PRICED)) == PRICED
        assert asyncio.run(cache.get(key(7))) == PRICED
        fill(cache)


@pytest.mark.slow
def test_what_is_no_cache_is_refused_and_left(run: Run, foreign: list[Path], folder: Path) -> None:
    for path in foreign:
        for command in (["stats"], ["clear", "--yes"]):
            assert "is not a cache: " in run("cache", *command, path, code=2), path
    assert "cannot be read" in run("cache", "stats", folder / "folder.db", code=2)
    assert "cannot tell what 'notes.txt' is" in run("cache", "clear", "--yes", "notes.txt", code=2)


def test_a_newer_cache_is_refused(run: Run, folder: Path) -> None:
    (folder / "cache.jsonl").write_bytes(format_line(b'{"v":2,"other":1}'))
    filled(folder / "cache.db")
    with closing(sqlite3.connect(folder / "cache.db")) as database:
        database.execute("PRAGMA user_version = 2")
    for name in ("cache.jsonl", "cache.db"):
        assert "has version 2, this release reads 1" in run("cache", "clear", "--yes", name, code=2)
        assert (folder / name).exists()


def test_the_log_of_a_run_is_shown_but_not_cleared(run: Run, folder: Path) -> None:
    calls = folder / "runs" / "monday" / "calls.jsonl"
    calls.parent.mkdir(parents=True)
    with closing(CallLog(calls)) as log:
        fill(log)

        async def ask() -> None:
            async with log.asking(key(9), model="m", node_id="bot"):
                pass

        asyncio.run(ask())
    (calls.parent / "run.json").write_text("{}")
    (folder / "link.jsonl").symlink_to(calls)
    assert "2 answers" in run("cache", "stats", calls)
    for path in (calls, folder / "link.jsonl"):
        assert "belongs to the run 'monday', which could not be resumed" in run("cache", "clear", "--yes", path, code=2)
    assert calls.exists()


def test_a_configuration_names_its_cache(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = folder / "project"
    project.mkdir()
    (project / "promptiter.yaml").write_text("cache: .promptiter/cache.sqlite\nmodels: {m: {api_key: '${NOT_SET}'}}\n")
    assert run("cache", "stats", project) == "nothing is cached yet: project/.promptiter/cache.sqlite\n"
    filled(project / ".promptiter" / "cache.sqlite")
    assert "2 answers" in run("cache", "stats", project)
    assert "2 answers" in run("cache", "stats", project / "promptiter.yaml")
    monkeypatch.chdir(project)
    assert run("cache", "stats").startswith(".promptiter/cache.sqlite  2 answers")
    run("cache", "clear", "--yes")
    assert entries(project / ".promptiter" / "cache.sqlite") == 0


def test_a_configuration_without_a_cache_is_reported_how_to_share_one(run: Run, folder: Path) -> None:
    assert "no promptiter.yaml is here: name a cache (.jsonl, .sqlite, .db)" in run("cache", "stats", code=2)
    (folder / "promptiter.yaml").write_text("agent: a:b\n")
    for command in ("stats", "clear"):
        assert "write `cache: .promptiter/cache.sqlite` into it" in run("cache", command, code=2)
    (folder / "promptiter.yaml").write_text("cache: 3\n")
    assert "must be 'memory', or a path in .jsonl" in run("cache", "stats", code=2)
    (folder / "promptiter.yaml").write_text("cache: answers.pickle\n")
    assert "is of an unknown kind" in run("cache", "stats", code=2)
