"""Files of traces: JSON for one trace, JSON lines for many, written and read as a stream. See `documents`."""

from __future__ import annotations

import codecs
import gc
import gzip
import io
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from traces.compression import is_packed, unpack
from traces.documents import from_json, to_json
from traces.errors import Place, UnreadableTraceError, UnwritableTraceError
from traces.model import ExecutionTrace

TraceSource: TypeAlias = str | os.PathLike[str] | bytes
"""A path, or the bytes themselves."""
TraceReader: TypeAlias = "io.BufferedReader[Any]"
"""An open file whose first bytes can be peeked at."""


def write_traces(path: str | os.PathLike[str], traces: Iterable[ExecutionTrace]) -> int:
    """Write one trace per line, atomically, and return how many. A name that ends in `.gz` compresses."""
    written = 0
    with write_atomically(path) as file:
        for trace in check_traces(traces):
            file.write(to_json(trace) + b"\n")
            written += 1
    return written


def read_traces(source: TraceSource) -> Iterator[ExecutionTrace]:
    """Yield the traces of a JSON or JSON lines file, which may be gzipped, as they are read."""
    with open_source(source) as (name, file):
        yield from parse_traces(name, file)


def parse_traces(name: str, file: IO[bytes]) -> Iterator[ExecutionTrace]:
    """Yield the traces of an open file; `name` is for error messages."""
    for place, document in split_documents(name, file):
        with pause_gc():
            trace = from_json(document, place=place)
        yield trace


def check_traces(traces: Iterable[ExecutionTrace]) -> Iterator[ExecutionTrace]:
    """Yield the traces, or raise a clear error if something else was passed."""
    if isinstance(traces, ExecutionTrace):
        raise UnwritableTraceError("pass a list of traces, not a single one: [trace]")
    for trace in traces:
        if not isinstance(trace, ExecutionTrace):
            raise UnwritableTraceError(
                f"pass a list of ExecutionTrace, got {type(trace).__name__}; for a recording, pass `recording.trace`"
            )
        yield trace


def split_documents(name: str, file: IO[bytes], *, max_mb: int | None = None) -> Iterator[tuple[Place, bytes]]:
    """Yield the JSON documents of a file with their places: one per line, or all lines if a document needs several.

    A document that is larger than `max_mb` is refused before it is read as a whole.
    """
    largest = -1 if max_mb is None else (max_mb << 20) + 1
    for number, line in enumerate(iter(partial(file.readline, largest), b""), start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.isspace() or not line:
            continue
        if len(line) < 80 and line.strip() in (b"{", b"["):
            rest = file.read(largest)
            _check_size(rest, largest, Place(name))
            yield Place(name), b"\n" * (number - 1) + line + rest
            return
        _check_size(line, largest, Place(name, line=number))
        yield Place(name, line=number), line


def _check_size(document: bytes, largest: int, place: Place) -> None:
    if 0 < largest <= len(document):
        raise UnreadableTraceError(
            f"is one JSON document of more than {largest >> 20:,} MB; export it as JSON lines (one batch of spans per "
            "line), or in parts",
            place=place,
        )


@contextmanager
def open_source(source: TraceSource) -> Iterator[tuple[str, TraceReader]]:
    """Open a path or bytes for reading, unpacking gzip and zstd; also returns a name for error messages."""
    name = "<bytes>" if isinstance(source, bytes) else os.fspath(source)
    try:
        with io.BufferedReader(io.BytesIO(source) if isinstance(source, bytes) else io.FileIO(source), 1 << 20) as raw:
            start = raw.peek(4)[:4]
            yield name, unpack(raw, start, Place(name)) if is_packed(start) else raw
    except OSError as error:
        raise UnreadableTraceError(f"cannot be read: {error.strerror or error}", place=Place(name)) from error
    except ValueError as error:
        if "null" not in str(error):
            raise
        raise UnreadableTraceError(f"is not a path: {error}", place=Place(repr(name))) from error


@contextmanager
def write_atomically(path: str | os.PathLike[str], *, is_compressed: bool = False) -> Iterator[IO[bytes]]:
    """Write a temporary file beside `path` and rename it at the end, so that a crash leaves the old file intact.

    A file named `.gz` is compressed, unless what is written `is_compressed` already.
    """
    target = Path(path)
    if not target.name or target.is_dir():
        raise UnwritableTraceError(f"{os.fspath(path)!r} is a folder; name a file in it")
    scratch = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        is_plain = is_compressed or target.suffix != ".gz"
        with cast("IO[bytes]", scratch.open("wb") if is_plain else gzip.open(scratch, "wb", 6)) as file:
            yield file
        scratch.replace(target)
    except BaseException as error:
        with suppress(OSError):
            scratch.unlink()
        if isinstance(error, OSError):
            raise UnwritableTraceError(f"{os.fspath(path)!r} cannot be written: {error.strerror or error}") from error
        raise


def write_file(path: str | os.PathLike[str], raw: bytes) -> None:
    """Write a whole file atomically. Its folder is created if it does not exist."""
    with suppress(OSError):  # what is wrong with the folder is an error of the file
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as file:
        file.write(raw)


@contextmanager
def pause_gc(*, is_last: bool = False) -> Iterator[None]:
    """Pause the garbage collector, which halves the time of reading: millions of new objects and no garbage.

    Pass `is_last` when everything is read at once: the new objects then move to the oldest generation. In a stream that
    would keep the collector from ever freeing what the consumer drops.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if is_last and not gc.get_freeze_count():
                # The new objects would all be scanned by the next collection; this makes them old without a scan.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
