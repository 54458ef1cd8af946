from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.evaluation.trace_file import TraceFile, keep_only
from promptiter.evaluation.trace_store import encode_trace
from promptiter.testing.store_hooks import make_trace
from traces import ExecutionTrace, read_traces

TRACES = [make_trace(text) for text in ("one", "two", "three")]
NAMES = [encode_trace(trace)[0] for trace in TRACES]


def write(path: Path | None, traces: list[ExecutionTrace]) -> TraceFile:
    file = TraceFile(path)
    for trace in traces:
        file.write(*encode_trace(trace))
    return file


def test_traces_are_found_by_their_digests_by_this_and_by_another_process(tmp_path: Path) -> None:
    for file in (write(None, TRACES), write(tmp_path / "t", TRACES), TraceFile(tmp_path / "t")):
        assert [file.get(name) for name in reversed(NAMES)] == TRACES[::-1]
        assert NAMES[0] in file
        assert "00" * 32 not in file


def test_the_file_is_a_gzip_of_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl.gz"
    write(path, TRACES)
    assert [*read_traces(path)] == TRACES
    assert gzip.decompress(path.read_bytes()).count(b"\n") == 3


def test_a_reader_finds_what_is_added_meanwhile(tmp_path: Path) -> None:
    writer = write(tmp_path / "t", TRACES[:1])
    reader = TraceFile(tmp_path / "t")
    assert (NAMES[0] in reader, NAMES[1] in reader) == (True, False)
    writer.write(*encode_trace(TRACES[1]))
    assert reader.get(NAMES[1]) == TRACES[1]


def test_a_trace_that_a_crash_cut_off_is_removed_and_can_be_added_again(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, TRACES)
    whole = path.read_bytes()
    for cut in (1, 20, 60):
        path.write_bytes(whole[:-cut])
        assert NAMES[2] not in TraceFile(path)
        again = write(path, TRACES[2:])
        assert [again.get(name) for name in NAMES] == TRACES
        assert path.read_bytes() == whole


@pytest.mark.parametrize("place", [0, 14, 30, 50, 60, -4], ids=lambda place: f"byte {place}")
def test_a_damaged_trace_costs_only_itself(tmp_path: Path, place: int) -> None:
    path = tmp_path / "t"
    file, sizes = TraceFile(path), []
    for trace in TRACES:
        file.write(*encode_trace(trace))
        sizes.append(path.stat().st_size)
    raw = bytearray(path.read_bytes())
    at = sizes[0] + place if place >= 0 else sizes[1] + place
    raw[at] ^= 0xFF
    path.write_bytes(raw)
    file = TraceFile(path)
    assert (NAMES[0] in file, NAMES[2] in file) == (True, True)
    assert NAMES[1] not in file
    with pytest.raises(SetupError, match=f"the trace {NAMES[1][:12]}… in .* cannot be read"):
        file.get(NAMES[1])


def test_what_was_read_between_two_writes_is_not_overwritten() -> None:
    file = TraceFile(None)
    for trace in TRACES:
        file.write(*encode_trace(trace))
        assert file.get(NAMES[0]) == TRACES[0]
    assert [file.get(name) for name in NAMES] == list(TRACES)


def test_a_second_writer_overwrites_nothing(tmp_path: Path) -> None:
    first = write(tmp_path / "t", TRACES[:1])
    second = write(tmp_path / "t", TRACES[1:2])
    first.write(*encode_trace(TRACES[2]))
    assert (first.get(NAMES[2]), second.get(NAMES[1])) == (TRACES[2], TRACES[1])
    assert [TraceFile(tmp_path / "t").get(name) for name in NAMES] == TRACES


def test_other_traces_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, TRACES)
    keep_only(path, {NAMES[0], NAMES[2]})
    assert [*read_traces(path.rename(tmp_path / "t.gz"))] == [TRACES[0], TRACES[2]]
    keep_only(tmp_path / "t.gz", ())
    keep_only(tmp_path / "t.gz", {NAMES[0]})
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("")
    with pytest.raises(SetupError, match=r"t/traces cannot be written: (Not a directory|File exists)"):
        write(tmp_path / "t" / "traces", TRACES)
