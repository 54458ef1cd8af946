"""Files of traces: JSON for one trace, JSON lines for many, written and read as a stream.

A document is `{"schema_version": 1, "trace": {...}}`. Fields with their default value are omitted.
"""

from __future__ import annotations

import codecs
import gc
import gzip
import io
import os
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

import orjson

from traces.errors import Place, TraceError, UnreadableTraceError, UnwritableTraceError
from traces.model import SCHEMA_VERSION, ExecutionTrace, Json

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

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


def to_json(trace: ExecutionTrace) -> bytes:
    """Serialize a trace as one line of JSON."""
    envelope = _get_document_model()
    try:
        document = envelope.model_construct(schema_version=SCHEMA_VERSION, trace=trace)
        raw = document.__pydantic_serializer__.to_json(document, exclude_defaults=True)
    except ValueError as error:  # includes pydantic's PydanticSerializationError
        raise UnwritableTraceError(
            f"trace {trace.id!r} contains a value that JSON cannot represent: {error}"
        ) from error
    # pydantic writes NaN and Infinity, which are not valid JSON. A text may contain these words too: parse to be sure.
    if (b"NaN" in raw or b"Infinity" in raw) and not _is_json(raw):
        raise UnwritableTraceError(
            f"trace {trace.id!r} contains a NaN or infinite number, which JSON cannot represent; record it as text"
        )
    return raw


def from_json(raw: bytes, *, place: Place | None = None) -> ExecutionTrace:
    """Parse a trace from one JSON document. A TraceError says what is wrong with it, and where."""
    from pydantic import ValidationError

    try:
        envelope: Any = _get_document_model().model_validate_json(raw)
    except TraceError as error:
        error.place = place
        raise
    except ValidationError as invalid:
        raise _explain(invalid, raw, place) from invalid
    if envelope.schema_version != SCHEMA_VERSION:
        raise _explain_version(envelope.schema_version, place)
    if (b"NaN" in raw or b"Infinity" in raw) and not _is_json(raw):
        raise explain_invalid_json(raw, place)
    return cast("ExecutionTrace", envelope.trace)


def split_documents(name: str, file: IO[bytes]) -> Iterator[tuple[Place, bytes]]:
    """Yield the JSON documents of a file with their places: one per line, or a single one spread over many lines."""
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.isspace() or not line:
            continue
        if len(line) < 80 and line.strip() in (b"{", b"["):
            yield Place(name), b"\n" * (number - 1) + line + file.read()
            return
        yield Place(name, line=number), line


@contextmanager
def open_source(source: TraceSource) -> Iterator[tuple[str, TraceReader]]:
    """Open a path or bytes for reading, unpacking gzip; also returns a name for error messages."""
    name = "<bytes>" if isinstance(source, bytes) else os.fspath(source)
    try:
        with io.BufferedReader(io.BytesIO(source) if isinstance(source, bytes) else io.FileIO(source), 1 << 20) as raw:
            magic = raw.peek(4)[:4]
            if magic.startswith(b"\x28\xb5\x2f\xfd"):
                raise UnreadableTraceError("is compressed with zstd; decompress it first: zstd -d", place=Place(name))
            if magic.startswith(b"\x1f\x8b"):
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield name, io.BufferedReader(cast("io.RawIOBase", unpacked), 1 << 20)
            else:
                yield name, raw
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UnreadableTraceError(f"is a damaged gzip file ({error}); copy it again", place=Place(name)) from error
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


@cache
def _get_document_model() -> type[BaseModel]:
    from pydantic import BaseModel, ConfigDict

    class TraceDocument(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")
        schema_version: int
        trace: ExecutionTrace

    return TraceDocument


def _explain(invalid: ValidationError, raw: bytes, place: Place | None) -> TraceError:
    first = invalid.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return explain_invalid_json(raw, place)
    where = format_field_path(first["loc"])
    version = _find_version(raw)
    if version is not None and version != SCHEMA_VERSION:
        return _explain_version(version, place)
    if where in ("", "schema_version", "trace"):
        expected = f'{{"schema_version": {SCHEMA_VERSION}, "trace": {{...}}}}'
        return UnreadableTraceError(f"is not a trace: expected {expected}, got {_shorten(first['input'])}", place=place)
    more = f" (and {invalid.error_count() - 1} more)" if invalid.error_count() > 1 else ""
    got = "" if first["type"] == "missing" else f", got {_shorten(first['input'])}"
    return UnreadableTraceError(f"{where}: {_describe_problem(first['type'], first['msg'])}{got}{more}", place=place)


def _find_version(raw: bytes) -> Json:
    """Find the version that a document states, whatever else is wrong with it."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    version = document.get("schema_version") if isinstance(document, dict) else None
    return repr(version) if isinstance(version, bool) else version


def _explain_version(version: Json, place: Place | None) -> UnreadableTraceError:
    message = f"schema_version is {version!r}, this release reads {SCHEMA_VERSION}; upgrade promptiter"
    return UnreadableTraceError(message, place=place)


def explain_invalid_json(raw: bytes, place: Place | None) -> UnreadableTraceError:
    """Build the error for bytes that are not JSON: what is wrong with them, and where."""
    reason = "it is nested too deeply or contains a number out of range"
    try:
        raw.decode()
        orjson.loads(raw)
    except UnicodeDecodeError as error:
        reason = f"invalid UTF-8 at byte {error.start} of the document"
    except orjson.JSONDecodeError as error:
        reason = f"{error.msg} at column {error.colno}"
        if place is not None and place.line is None:
            place = Place(place.source, line=error.lineno)
    return UnreadableTraceError(
        f"is not valid JSON: {reason}; the file is truncated or damaged: write it again", place=place
    )


def format_field_path(location: Iterable[int | str]) -> str:
    """Format `("trace", "steps", 3, "id")` as `trace.steps[3].id`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _describe_problem(kind: str, message: str) -> str:
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return "is not a known field"
    if kind in ("missing", "missing_keyword_only_argument", "missing_argument"):
        return "is missing"
    return message[:1].lower() + message[1:]


def _shorten(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _is_json(raw: bytes) -> bool:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return "number out of range" in str(error)  # an integer beyond 64 bits is still JSON
    return True
