from __future__ import annotations

import asyncio
import errno
import gc
import multiprocessing
import os
import resource
import shutil
import stat
import subprocess
import tracemalloc
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptiter.errors import JournalError, RunLockedError
from promptiter.runlog.events import Event
from promptiter.runlog.fold import fold
from promptiter.runlog.journal import DECISIONS, MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.runs.event_file import INDEX_EVERY as EVERY
from promptiter.runs.event_file import EventFile
from promptiter.runs.file_journal import FileJournal
from promptiter.runs.lock import RunLock
from tests.traces.strategies import json_values, texts
from tests.worlds import desk


def renumber(many: list[Event]) -> list[Event]:
    return [each.model_copy(update={"seq": seq}) for seq, each in enumerate(many)]


halves = st.text(st.sampled_from('a\ud83d\n"\\\u2028'), max_size=4)
wide = st.integers(2**64, 2**70)
events = st.lists(
    st.builds(
        Event,
        seq=st.just(0),
        run_id=texts,
        round=st.integers(0, 9),
        phase=texts,
        type=texts,
        data=st.dictionaries(texts, json_values | halves | wide, max_size=3),
    ),
    max_size=5,
).map(renumber)


def event(seq: int, kind: str = "case", **data: Any) -> Event:
    return Event(seq=seq, run_id="r", round=1, type=kind, data=data or {"row": {"case_id": f"case {seq}"}})


def read(path: Path) -> list[Event]:
    return list(EventFile(path).read())


def append(journal: FileJournal, *many: Event) -> None:
    async def write() -> None:
        for each in many:
            await journal.append(each)

    asyncio.run(write())


def write_journal(path: Path, *many: Event) -> bytes:
    with FileJournal(path) as journal:
        append(journal, *many)
    return path.read_bytes() if many else b""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.mark.slow
@settings(max_examples=60)
@given(many=events)
def test_events_survive_a_round_trip(many: list[Event], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    write_journal(path, *many)
    assert read(path) == many
    for start in range(len(many) + 2):
        assert list(EventFile(path).read(start)) == many[start:]


def test_a_journal_without_a_file_is_empty(path: Path) -> None:
    journal = FileJournal(path)
    assert list(journal.reader().read()) == []
    assert journal.dropped is None
    journal.close()
    assert not path.exists()


def test_the_line_format_is_stable(path: Path) -> None:
    raw = write_journal(path, Event(seq=0, run_id="r", type="stop", data={"ü": None}))
    assert raw.decode() == (
        '{"checksum":"b024aec0","event":{"schema_version":2,"seq":0,"run_id":"r","round":0,"phase":"start",'
        '"type":"stop","version":1,"data":{"ü":null},"measured":{"elapsed_s":0.0}}}\n'
    )


@pytest.mark.slow
def test_folding_the_journal_gives_the_result_of_the_run(path: Path) -> None:
    journal = FileJournal(path)
    result = desk.engine(desk.DRAFT, desk.POLISH).run_sync(desk.request(), journal=journal)
    assert fold(EventFile(path).read()) == result == desk.engine(desk.DRAFT, desk.POLISH).run_sync(desk.request())
    assert result.verdict == "improved_on_validation"


@pytest.mark.long
def test_a_run_that_was_cut_off_anywhere_resumes_to_the_same_journal(path: Path) -> None:
    def run(journal: FileJournal) -> RunResult:
        with journal:
            return desk.engine(desk.DRAFT).run_sync(desk.request(), journal=journal)

    def plain(many: list[Event]) -> list[Any]:
        assert [each.seq for each in many] == list(range(len(many)))
        return sorted((each.type, each.round, each.phase) for each in many)  # cases may finish in another order

    result = run(FileJournal(path))
    raw, whole = path.read_bytes(), read(path)
    lines = raw.splitlines(keepends=True)
    for kept in range(1, len(lines)):
        path.write_bytes(b"".join(lines[:kept]) + lines[kept][: len(lines[kept]) // 2])
        journal = FileJournal(path)
        assert run(journal) == result
        assert f"(line {kept + 1}, " in (journal.dropped or "")
        assert plain(read(path)) == plain(whole)


@pytest.mark.slow
def test_a_tail_torn_at_any_byte_is_dropped_and_reported(path: Path) -> None:
    many = [event(0), event(1), event(2, "decision", text="é\ud83d")]
    raw = write_journal(path, *many)
    last = raw.splitlines(keepends=True)[-1]
    for length in range(len(last)):
        path.write_bytes(raw[: len(raw) - len(last) + length])
        reader = EventFile(path)
        assert list(reader.read()) == many[:2]
        assert (reader.dropped is None) == (length == 0)
        if length:
            assert f"(line 3, {length} bytes without a line break)" in (reader.dropped or "")
        assert path.stat().st_size == len(raw) - len(last) + length  # reading changes nothing
        with FileJournal(path) as journal:
            append(journal, many[2])
            assert journal.dropped == reader.dropped
        assert path.read_bytes() == raw


@pytest.mark.slow
@settings(max_examples=60)
@given(many=events, torn=st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")))
def test_the_last_event_is_that_of_the_last_whole_line(
    many: list[Event], torn: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    path.write_bytes(write_journal(path, *many) + torn)
    assert EventFile(path).last() == (many[-1] if many else None)


@pytest.mark.parametrize("size", [10, 16_000, 16_400, 50_000, 500_000])
def test_the_last_event_is_found_whatever_its_size(path: Path, size: int) -> None:
    many = [event(0, text="x" * size), event(1, text="y" * size)]
    for count_ in (1, 2):
        path.unlink(missing_ok=True)
        write_journal(path, *many[:count_])
        path.write_bytes(path.read_bytes() + bytes(size))
        assert EventFile(path).last() == many[count_ - 1]


def test_an_empty_journal_has_no_last_event(path: Path) -> None:
    assert EventFile(path).last() is None
    path.write_bytes(b"torn")
    assert EventFile(path).last() is None


def test_the_last_event_is_read_without_the_others(path: Path) -> None:
    raw = write_journal(path, *map(event, range(5)))
    path.write_bytes(raw.replace(b"case 1", b"case 7"))
    assert EventFile(path).last() == event(4)
    path.write_bytes(raw.replace(b"case 4", b"case 7"))
    with pytest.raises(JournalError, match=r"line 5 .* is damaged"):
        EventFile(path).last()
    path.unlink()
    write_journal(path, Event.model_construct(**(dict(event(0)) | {"schema_version": 3})))
    with pytest.raises(JournalError, match=r"line 1 .* schema_version is 3"):
        EventFile(path).last()


def test_reading_from_the_middle_skips_what_was_verified_before(path: Path) -> None:
    many = [event(seq) for seq in range(3 * EVERY)]
    raw = write_journal(path, *many)
    reader, fresh = EventFile(path), EventFile(path)
    assert list(reader.read()) == many
    path.write_bytes(raw.replace(b'case 1"', b'case 7"'))
    for start in (
        EVERY,
        EVERY + 1,
        2 * EVERY - 1,
        2 * EVERY,
        3 * EVERY,
        3 * EVERY + 5,
    ):
        assert list(reader.read(start)) == many[start:]
        with pytest.raises(JournalError, match="line 2"):
            list(fresh.read(start))


def test_an_appending_journal_also_reads_from_the_middle(path: Path) -> None:
    with FileJournal(path, fsync=()) as journal:
        for seq in range(2 * EVERY + 3):
            append(journal, event(seq))
        path.write_bytes(path.read_bytes().replace(b'case 1"', b'case 7"'))
        assert [each.seq for each in journal.reader().read(2 * EVERY)] == [
            2 * EVERY,
            2 * EVERY + 1,
            2 * EVERY + 2,
        ]


def test_a_replaced_journal_is_read_from_its_beginning(path: Path) -> None:
    write_journal(path, *[event(seq, text="long " * 9) for seq in range(2 * EVERY)])
    reader = EventFile(path)
    assert len(list(reader.read())) == 2 * EVERY
    path.unlink()
    many = [event(seq) for seq in range(2 * EVERY)]
    write_journal(path, *many)
    assert list(reader.read(EVERY + 1)) == many[EVERY + 1 :]
    assert list(reader.read(EVERY)) == many[EVERY:]


def test_zeros_after_the_last_line_are_dropped_too(path: Path) -> None:
    raw = write_journal(path, event(0))
    path.write_bytes(raw + bytes(5000))
    assert write_journal(path, event(1)) == raw + path.read_bytes()[len(raw) :]
    assert read(path) == [event(0), event(1)]


@pytest.mark.slow
def test_a_damaged_byte_anywhere_in_a_whole_line_is_reported(path: Path) -> None:
    raw = write_journal(path, event(0), event(1), event(2))
    first = raw.index(b"\n") + 1
    second = raw.index(b"\n", first) + 1
    for at in range(first, second):
        for bit in (1, 0x80):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :])
            journal = FileJournal(path)
            found: list[Event] = []
            with pytest.raises(
                JournalError, match=r"line 2 of the journal '.*' is damaged: its checksum does not match"
            ):
                found.extend(journal.reader().read())
            with pytest.raises(JournalError, match="line 2"):
                list(journal.reader().read(2))
            with pytest.raises(JournalError, match="line 2"):
                append(journal, event(3))
            assert len(path.read_bytes()) == len(raw)


def test_the_advice_for_a_damaged_journal_works(path: Path) -> None:
    raw = write_journal(path, event(0), event(1), event(2))
    path.write_bytes(raw.replace(b"case 1", b"case 7"))
    with pytest.raises(JournalError) as caught:
        read(path)
    command = str(caught.value).split("`")[1]
    subprocess.run(command, shell=True, cwd=path.parent, check=True)
    assert read(path) == [event(0)]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 2], "line 2 .* holds event 2, where event 1 belongs"),
        ([0, 1, 1, 2], "line 3 .* holds event 1, where event 2 belongs"),
        ([1, 0], "line 1 .* holds event 1, where event 0 belongs"),
    ],
)
def test_lines_that_were_removed_duplicated_or_moved_are_reported(path: Path, order: list[int], message: str) -> None:
    lines = write_journal(path, event(0), event(1), event(2)).splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number] for number in order))
    with pytest.raises(JournalError, match=message):
        read(path)


def test_a_line_of_another_release_is_reported(path: Path) -> None:
    newer = Event.model_construct(**(dict(event(0)) | {"schema_version": 3}))
    write_journal(path, newer)
    with pytest.raises(JournalError, match=r"line 1 .* schema_version is 3, this release reads 2"):
        read(path)
    path.unlink()
    write_journal(path, Event.model_construct(**(dict(event(0)) | {"round": "one"})))
    with pytest.raises(JournalError, match=r"line 1 .* by another release of promptiter \(round: Input should be"):
        read(path)


@pytest.mark.parametrize("value", [float("nan"), [{"a": float("-inf")}], {1: 2}, object(), {"a": {"b"}}])
def test_values_that_are_not_json_are_refused_and_leave_no_trace(path: Path, value: object) -> None:
    journal = FileJournal(path)
    append(journal, event(0))
    with pytest.raises(JournalError, match=r"event 1 \(case\) cannot be stored as JSON: .*; record plain JSON values"):
        append(journal, event(1, value=value))
    append(journal, event(1))
    journal.close()
    assert read(path) == [event(0), event(1)]


def test_only_the_next_event_can_be_appended(path: Path) -> None:
    journal = FileJournal(path)
    append(journal, event(0))
    for seq in (0, 2):
        with pytest.raises(JournalError, match=f"has 1 events, and the next to append has number {seq}"):
            append(journal, event(seq))
    journal.close()
    with pytest.raises(JournalError, match="has 1 events, and the next to append has number 0"):
        append(FileJournal(path), event(0))


def test_a_second_writer_is_reported(path: Path) -> None:
    one, other = FileJournal(path), FileJournal(path)
    append(one, event(0))
    append(other, event(1))
    with pytest.raises(JournalError, match="was changed by another process"):
        append(one, event(1))
    one.close()
    other.close()
    assert read(path) == [event(0), event(1)]


def test_lines_that_came_after_reading_are_not_cut_off(path: Path) -> None:
    late = FileJournal(path)
    assert list(late.reader().read()) == []
    write_journal(path, event(0))
    append(late, event(1))
    late.close()
    assert read(path) == [event(0), event(1)]


def test_a_journal_can_be_read_while_lines_are_written(path: Path) -> None:
    journal, looking = FileJournal(path), EventFile(path)
    for seq in range(20):
        append(journal, event(seq))
        assert list(looking.read(seq)) == list(journal.reader().read(seq)) == [event(seq)]
    journal.close()


def test_a_lost_lock_stops_the_writing(tmp_path: Path, path: Path) -> None:
    with RunLock(tmp_path, lease_s=0.0) as lock, FileJournal(path, lock=lock) as journal:
        append(journal, event(0))
        (tmp_path / "lock").unlink()
        with pytest.raises(RunLockedError, match="its lock file is gone"):
            append(journal, event(1))
    assert read(path) == [event(0)]


@pytest.mark.parametrize("what", ["folder", "device"])
def test_a_folder_or_device_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path if what == "folder" else Path("/dev/zero")
    with pytest.raises(JournalError, match="is not a file; give a path such as"):
        read(path)


def test_a_folder_that_is_gone_is_reported(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="No such file or directory; free some space or fix the disk"):
        append(FileJournal(tmp_path / "gone" / "journal.jsonl"), event(0))


class Disk:
    """Counts what is synced, and fails on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[bool] = []  # whether it was a folder
        self.fails = False
        monkeypatch.setattr("os.fsync", self.sync)

    def sync(self, file: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        self.synced.append(stat.S_ISDIR(os.fstat(file).st_mode))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_the_file_is_synced_at_decisions_and_at_the_end(path: Path, disk: Disk) -> None:
    journal = FileJournal(path)
    append(journal, event(0))
    assert disk.synced == [True, True]  # the names of the file and of its folder
    for seq, kind in enumerate(("case", "candidate", "of.a.search", *sorted(DECISIONS)), start=1):
        disk.synced.clear()
        append(journal, event(seq, kind))
        assert disk.synced == [False] * (kind in DECISIONS)
    disk.synced.clear()
    journal.close()
    journal.close()
    assert disk.synced == [False]
    assert sorted(DECISIONS) == [
        "decision",
        "final_test",
        "final_test_begun",
        "round_completed",
        "run_completed",
        "stop",
    ]


def test_syncing_can_be_switched_off(path: Path, disk: Disk) -> None:
    with FileJournal(path, fsync=()) as journal:
        append(journal, event(0, "decision"))
    assert disk.synced == []


def test_a_failing_disk_loses_only_the_event_being_written(path: Path, disk: Disk) -> None:
    journal = FileJournal(path)
    append(journal, event(0))
    disk.fails = True
    with pytest.raises(JournalError, match=r"event 1 \(decision\) could not be written to .*: Input/output error"):
        append(journal, event(1, "decision"))
    assert read(path) == [event(0)]
    disk.fails = False
    append(journal, event(1, "decision"))
    disk.fails = True
    with pytest.raises(JournalError, match="the end could not be written"):
        journal.close()
    assert read(path) == [event(0), event(1, "decision")]


async def test_a_cancelled_append_still_writes_its_event(path: Path) -> None:
    journal = FileJournal(path)
    for seq in range(20):
        task = asyncio.create_task(journal.append(event(seq, "decision")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    journal.close()
    assert read(path) == [event(seq, "decision") for seq in range(20)]


def fill(path: str, limit: int, results: Connection) -> None:
    journal = FileJournal(path)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    seq = 0
    try:
        for seq in count():
            append(journal, event(seq, text=f"{seq} " * 300))
    except JournalError as error:
        results.send((seq, str(error), Path(path).read_bytes()))
    append(journal, event(seq, "run_completed"))  # a smaller event may still fit
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    append(journal, event(seq + 1, text="more" * 300))
    journal.close()


@pytest.mark.slow
def test_a_full_disk_is_reported_and_leaves_whole_lines(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    writer = context.Process(target=fill, args=(str(path), 10_200, sender))
    writer.start()
    seq, message, raw = receiver.recv()
    writer.join()
    assert writer.exitcode == 0
    assert (
        f"event {seq} (case) could not be written to the journal '{path}': File too large; free some space" in message
    )
    assert raw.endswith(b"}\n")
    assert len(raw.splitlines()) == seq > 3
    assert [each.type for each in read(path)] == ["case"] * seq + ["run_completed", "case"]


def write_forever(path: str, results: Connection) -> None:
    async def write() -> None:
        journal = FileJournal(path)
        for seq in count(len(list(journal.reader().read()))):
            await journal.append(event(seq, "decision" if seq % 50 == 0 else "case", text=f"{seq} " * 2000))
            results.send(seq)

    asyncio.run(write())


@pytest.mark.slow
def test_appended_events_survive_sigkill(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    length = 0
    for round_ in range(2):
        receiver, sender = context.Pipe(duplex=False)
        writer = context.Process(target=write_forever, args=(str(path), sender))
        writer.start()
        sender.close()
        appended = [receiver.recv() for _ in range(60 + round_)]
        writer.kill()
        writer.join()
        with suppress(EOFError):
            while True:
                appended.append(receiver.recv())
        found = [each.seq for each in EventFile(path).read()]
        assert appended[0] == length
        assert found == list(range(len(found)))
        assert appended[-1] + 1 <= len(found) <= appended[-1] + 2
        length = len(found)


@pytest.mark.long
async def test_memory_does_not_grow_with_the_journal(path: Path) -> None:
    async def grow(start: int, journal: FileJournal) -> None:
        for seq in range(start, start + 2000):
            await journal.append(event(seq, row={"output": "x" * 500}))
        found = 0
        async for _ in journal.read():
            found += 1
        assert found == start + 2000
        gc.collect()

    with FileJournal(path, fsync=()) as journal:
        await grow(0, journal)
        tracemalloc.start()
        try:
            await grow(2000, journal)
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            await grow(4000, journal)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 20_000
    assert peak - before < 1_500_000  # a buffer and a few events; the file has more than 3 MB


@pytest.mark.slow
def test_a_copied_journal_has_the_same_events(path: Path, tmp_path: Path) -> None:
    memory = MemoryJournal()
    desk.engine(desk.DRAFT).run_sync(desk.request(), journal=memory)
    write_journal(path, *memory.events)
    copy = shutil.copy(path, tmp_path / "copy.jsonl")
    assert list(EventFile(copy).read()) == list(memory.events)
    assert all(set(orjson.loads(line)) == {"checksum", "event"} for line in Path(copy).read_bytes().splitlines())
