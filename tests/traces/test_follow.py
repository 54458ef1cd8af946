from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.traces.test_otel_formats import EXPORTS, FAN_OUT, to_frames
from traces import UnreadableTraceError, read_otel
from traces.otel.follow import Follower

RAW = (EXPORTS / f"{FAN_OUT}.sdk.jsonl").read_bytes()
EXPECTED = read_otel(EXPORTS / f"{FAN_OUT}.sdk.jsonl")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


Follow = Callable[..., tuple[Follower, Clock]]


@pytest.fixture
def follow() -> Iterator[Follow]:
    with ExitStack() as stack:

        def start(path: Path, raw: bytes = b"") -> tuple[Follower, Clock]:
            path.write_bytes(raw)
            clock = Clock()
            return stack.enter_context(Follower(path, quiet_s=10, clock=clock)), clock

        yield start


def append(path: Path, raw: bytes) -> None:
    with path.open("ab") as file:
        file.write(raw)


@pytest.mark.parametrize("piece", [100, 5_000, 100_000])
def test_a_run_is_returned_once_it_has_ended_and_is_quiet(follow: Follow, tmp_path: Path, piece: int) -> None:
    follower, clock = follow(tmp_path / "spans.jsonl")
    for start in range(0, len(RAW), piece):
        append(tmp_path / "spans.jsonl", RAW[start : start + piece])
        assert follower.look() == []
        clock.now += 1
    clock.now += 8
    assert follower.look() == []
    clock.now += 2
    assert follower.look() == EXPECTED
    assert follower.finish() == []
    assert not follower.coverage.warnings


def test_frames_of_protobuf_are_followed(follow: Follow, tmp_path: Path) -> None:
    raw = to_frames([(EXPORTS / f"{FAN_OUT}.otlp.pb").read_bytes()])
    follower, clock = follow(tmp_path / "spans.pb", raw[:1000])
    assert follower.look() == []
    append(tmp_path / "spans.pb", raw[1000:] + raw[:77])
    follower.look()
    clock.now = 10
    assert follower.look() == read_otel(raw)
    assert follower.finish() == []
    assert follower.coverage.warnings == {"a half-written last message was left out": 1}


def test_a_replaced_and_an_emptied_file_are_read_from_the_start(follow: Follow, tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    lines = RAW.splitlines(keepends=True)
    follower, _ = follow(path, b"".join(lines[:3]))
    follower.look()
    path.rename(tmp_path / "spans.1.jsonl")
    assert follower.look() == []
    path.write_bytes(b"".join(lines[3:5]) + b'{"half')
    follower.look()
    path.write_bytes(b"")
    follower.look()
    append(path, b"".join(lines[5:]))
    follower.look()
    assert follower.finish() == EXPECTED
    assert follower.coverage.warnings == {"a half-written message at the end of a replaced file was left out": 1}


def test_a_run_without_a_root_waits_longer_and_late_spans_are_counted(follow: Follow, tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    lines = [line for line in RAW.splitlines(keepends=True) if b'"parent_id": null' not in line]
    follower, clock = follow(path, b"".join(lines))
    follower.look()
    clock.now = 50
    assert follower.look() == []
    clock.now = 60
    [trace] = follower.look()
    assert trace.status == "incomplete"
    append(path, lines[0])
    assert follower.look() == []
    assert follower.coverage.warnings == {"a span or log record came after its run had been written": 1}


def test_an_unreadable_line_is_counted_unless_it_is_the_first(follow: Follow, tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    follower, _ = follow(path, RAW)
    follower.look()
    append(path, b'{"broken": \n')
    follower.look()
    assert follower.finish() == EXPECTED
    assert follower.coverage.warnings == {"a message that cannot be read was left out": 1}
    with pytest.raises(UnreadableTraceError, match="line 1: is not valid JSON"):
        follow(path, b'{"broken": \n' + RAW)[0].look()


def test_what_cannot_be_followed_is_refused(follow: Follow, tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match="without --follow"):
        follow(tmp_path / "spans.gz", b"\x1f\x8b\x08\x00\x00\x00")[0].look()
    with pytest.raises(UnreadableTraceError, match="cannot be read: No such file"):
        Follower(tmp_path / "missing.jsonl")
