"""A copy of a run as a folder, from whatever store it is in: `promptiter show`, `report`, `apply` and others read it.

It has the header, the events, the traces, and what the run has spent. The answers of models stay in the store, so a
copy is for looking at a run and for applying it. Between machines it travels as a zip file.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import IO

import orjson

from promptiter.concurrency import run_in_thread
from promptiter.errors import SetupError
from promptiter.evaluation.trace_file import FILE_NAME as TRACES
from promptiter.evaluation.trace_file import TraceFile
from promptiter.llm.cache.call_log import FILE_NAME as CALLS
from promptiter.llm.cache.call_log import CallLog
from promptiter.llm.cache.keys import CacheKey
from promptiter.runlog.payloads import CaseFinished, RunCompleted
from promptiter.runs.artifacts import write_artifacts
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.file_journal import FileJournal
from promptiter.runs.folder_store import CANCEL
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import RunHeader, parse_header, read_header, write_header
from promptiter.runs.lock import FILE_NAME as LOCK
from promptiter.runs.store import RunView
from promptiter.runs.summary import read_result
from traces import TraceError
from traces.documents import to_json

FILES = (JOURNAL, TRACES, CALLS, LOCK, CANCEL)
"""The files of a copy besides its header. Others in a zip file are ignored."""


async def copy_run(view: RunView, folder: Path, *, traces: bool = True) -> None:
    """Copy a run into a folder, which is created. Of a run in progress, that is what it has so far."""
    await run_in_thread(lambda: _create(folder, view.header))
    digests: dict[str, None] = {}
    has_ended = False
    with FileJournal(folder / JOURNAL, fsync=()) as journal:
        async for event in view.read():
            await journal.append(event)
            has_ended = isinstance(event.payload, RunCompleted)
            if traces and isinstance(event.payload, CaseFinished):
                digests |= dict.fromkeys(event.payload.row.trace_digests)
    await _copy_traces(view, folder, digests)
    if await view.is_cancel_requested():
        (folder / CANCEL).touch()
    if has_ended:
        return
    calls = CallLog(folder / CALLS)
    for number, entry in enumerate((await view.read_ledger()).entries):
        await calls.note_paid(CacheKey(role=entry.role, request_digest=f"copied-{number}"), entry)
    calls.close()
    if (holder := await view.find_holder()) is not None:  # until its lease expires, the copy is that of a running run
        lease = replace(holder, machine="another", host="the server", pid=0)
        (folder / LOCK).write_bytes(orjson.dumps(asdict(lease), option=orjson.OPT_APPEND_NEWLINE))


def finish_copy(folder: Path) -> None:
    """Write what follows from a copy: result.json, profiles, surfaces and the report."""
    from promptiter.runs.report.files import write_report  # it takes long to import

    result = read_result(folder)
    write_report(folder, result)
    write_artifacts(folder, result)


def set_configuration(folder: Path, file: Path) -> None:
    """Let a copy of a run that began on another machine belong to the project of this configuration."""
    header = read_header(folder)
    if header.configuration is not None:
        configuration = header.configuration.model_copy(update={"file": str(file.resolve())})
        (folder / HEADER).unlink()
        write_header(folder, header.model_copy(update={"configuration": configuration}))


def pack_copy(folder: Path, file: IO[bytes]) -> None:
    """Write a copy as a zip file. Its header has the absolute path of the configuration."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
        archive.writestr(HEADER, orjson.dumps(read_header(folder).model_dump(mode="json")))
        for name in FILES:
            if (folder / name).exists():
                archive.write(folder / name, name)


def unpack_copy(file: IO[bytes], folder: Path) -> None:
    """Write the copy in a zip file to a folder, which is created. SetupError if it is not one."""
    try:
        with zipfile.ZipFile(file) as archive:
            header = parse_header(archive.read(HEADER), where="run.json of the archive")
            _create(folder, header)
            for name in {*FILES} & {*archive.namelist()}:
                with archive.open(name) as packed, (folder / name).open("wb") as plain:
                    shutil.copyfileobj(packed, plain)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise SetupError(f"the archive of the run cannot be read: {error}") from error


async def _copy_traces(view: RunView, folder: Path, digests: dict[str, None]) -> None:
    """Copy the traces that are kept."""
    file = TraceFile(folder / TRACES)
    for each in digests:
        try:
            trace = await view.read_trace(each)
        except (SetupError, TraceError):  # not kept, or damaged
            continue
        await run_in_thread(partial(file.write, each, to_json(trace)))


def _create(folder: Path, header: RunHeader) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise SetupError(f"{os.fspath(folder)!r} exists; choose another folder, or remove it") from error
    except OSError as error:
        raise SetupError(f"{os.fspath(folder)!r} cannot be created: {error.strerror or error}") from error
    write_header(folder, header)
