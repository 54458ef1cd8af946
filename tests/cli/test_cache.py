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
from promptiter.llm.ledger import LedgerEntry, Spending
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


def fill_file(path: Path, *more: tuple[Role, StoredAnswer]) -> Path:
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
    """Files that have the name of a cache, but are not one."""
    half = fill_file(folder / "half.jsonl").read_bytes()
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
            fill_file(folder / name)
        with closing(sqlite3.connect(folder / name)) as database:
            database.execute(statement)
    (folder / "folder.db").mkdir()
    paths = [folder / name for name in (*files, "users.sqlite", "more.sqlite")]
    before = {path: path.read_bytes() for path in paths}
    yield paths
    assert {path: path.read_bytes() for path in paths} == before


def test_stats_are_reported_by_role(run: Run, path: Path) -> None:
    fill_file(path, ("judge", UNPRICED), ("optimizer", PRICED), ("optimizer", UNCOUNTED))
    output = [" ".join(line.split()) for line in run("cache", "stats", path).splitlines()]
    assert output[0].startswith(f"{path.name} 5 answers, ")
    assert output[2:] == [
        "role answers tokens to pay again",
        "agent 2 1,234 $0.2500",
        "judge 1 6 unknown",
        "optimizer 2 1,234 and 1 unknown $0.2500 + 1 call of unknown usage",
        "total 5 2,474 and 1 unknown $0.5000 + 1 call of unknown usage + 1 call of unknown price",
    ]


def test_stats_as_json(run: Run, path: Path) -> None:
    fill_file(path, ("judge", UNPRICED))
    output = orjson.loads(run("cache", "stats", path, "--json"))
    assert output.pop("bytes") >= path.stat().st_size > 0
    judge = {"answers": 1, "tokens": 6, "uncounted_answers": 0, "cost_usd": None, "unpriced_answers": 1}
    agent = {"answers": 2, "tokens": 1234, "uncounted_answers": 0, "cost_usd": 0.25, "unpriced_answers": 0}
    assert output == {
        "schema_version": 1,
        "path": str(path),
        "by_role": {"agent": agent, "judge": judge},
        "total": {**agent, "answers": 3, "tokens": 1240, "unpriced_answers": 1},
    }


def test_a_missing_cache_is_not_created(run: Run, path: Path) -> None:
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


def test_a_torn_line_is_skipped(run: Run, folder: Path) -> None:
    path = fill_file(folder / "cache.jsonl")
    whole = path.read_bytes()
    for size in (3, 40):
        path.write_bytes(whole + whole[:size])
        assert "2 answers" in run("cache", "stats", path)


def test_clearing_reports_and_removes_the_answers(run: Run, path: Path) -> None:
    fill_file(path, ("judge", UNPRICED))
    size = path.stat().st_size
    output = run("cache", "clear", "--yes", path)
    assert output.startswith("removing 3 answers, ")
    assert output.endswith(f" in {path.name} (to pay again: $0.2500 + 1 call of unknown price)\n")
    assert run("cache", "stats", path).startswith(("nothing is cached", f"{path.name}  0 answers"))
    assert not path.exists() or path.stat().st_size <= size
    fill_file(path)
    assert entries(path) == 2


def test_clearing_frees_disk_space(run: Run, folder: Path) -> None:
    path = fill_file(folder / "cache.sqlite", ("agent", ModelReply(text="x" * 1_000_000)))
    assert path.stat().st_size > 1_000_000
    run("cache", "clear", "--yes", path)
    assert path.stat().st_size < 50_000


def test_clearing_asks_for_confirmation(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_file(path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "this would remove 2 answers" in (output := run("cache", "clear", path, code=2))
    assert output.endswith("; pass --yes to do it\n")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert run("cache", "clear", path, code=1, stream="out").endswith("nothing removed\n")
    assert entries(path) == 2
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert run("cache", "clear", path).startswith("removing 2 answers")
    assert not path.exists() or entries(path) == 0


def test_clearing_does_not_disturb_an_open_cache(run: Run, path: Path) -> None:
    with closing(open_cache(path)) as cache:
        fill(cache)
        run("cache", "clear", "--yes", path)
        assert asyncio.run(cache.put(key(7), PRICED)) == PRICED
        assert asyncio.run(cache.get(key(7))) == PRICED
        fill(cache)


@pytest.mark.slow
def test_files_that_are_not_caches_are_refused(run: Run, foreign: list[Path], folder: Path) -> None:
    for path in foreign:
        for command in (["stats"], ["clear", "--yes"]):
            assert "is not a cache: " in run("cache", *command, path, code=2), path
    assert "cannot be read" in run("cache", "stats", folder / "folder.db", code=2)
    assert "'notes.txt' is not a cache" in run("cache", "clear", "--yes", "notes.txt", code=2)


def test_a_newer_cache_is_refused(run: Run, folder: Path) -> None:
    (folder / "cache.jsonl").write_bytes(format_line(b'{"v":2,"other":1}'))
    fill_file(folder / "cache.db")
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
            lost = LedgerEntry(role="agent", model="m", node_id="bot", spent=Spending.of_lost_call())
            async with log.asking(key(9), lost=lost):
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
    fill_file(project / ".promptiter" / "cache.sqlite")
    assert "2 answers" in run("cache", "stats", project)
    assert "2 answers" in run("cache", "stats", project / "promptiter.yaml")
    monkeypatch.chdir(project)
    assert run("cache", "stats").startswith(".promptiter/cache.sqlite  2 answers")
    run("cache", "clear", "--yes")
    assert entries(project / ".promptiter" / "cache.sqlite") == 0


@pytest.mark.slow
def test_a_configuration_without_a_cache_gets_advice(run: Run, folder: Path) -> None:
    assert "there is no promptiter.yaml here: give a cache (.jsonl, .sqlite, .db)" in run("cache", "stats", code=2)
    (folder / "promptiter.yaml").write_text("agent: a:b\n")
    for command in ("stats", "clear"):
        assert "add `cache: .promptiter/cache.sqlite` to it" in run("cache", command, code=2)
    (folder / "promptiter.yaml").write_text("cache: 3\n")
    assert "must be 'memory', or a path in .jsonl" in run("cache", "stats", code=2)
    (folder / "promptiter.yaml").write_text("cache: answers.pickle\n")
    assert "is of an unknown kind" in run("cache", "stats", code=2)
