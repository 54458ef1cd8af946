"""The supervisor: opens one copy, and answers requests until its input ends. Then all processes of the copy end too."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from promptiter.sandbox.protocol import Message, read_message, write_message
from promptiter.sandbox.supervisor.changes import TooManyChangesError
from promptiter.sandbox.supervisor.commands import CommandRequest, install_child_handler, run_command
from promptiter.sandbox.supervisor.copies import Copy, OpenRequest
from promptiter.sandbox.supervisor.files import RefusedFileError, read_file
from promptiter.sandbox.supervisor.folder_copy import FolderCopy
from promptiter.sandbox.supervisor.landlock import read_abi
from promptiter.sandbox.supervisor.mounted_copy import MountedCopy
from promptiter.sandbox.supervisor.processes import Descendants, end_processes
from promptiter.sandbox.supervisor.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl

REQUESTS, ANSWERS = 0, 1
_MAX_ERROR = 500
_REFUSED = (OSError, RefusedFileError, TooManyChangesError)


def main() -> None:
    """Serve one copy. Every request gets one answer."""
    try:
        message, data = read_message(REQUESTS)
        request = _read_open(message, data)
        _stay_with_parent(request.kind)
        install_child_handler()
        try:
            copy = MountedCopy(request) if request.kind == "namespaces" else FolderCopy(request)
        except _REFUSED as error:
            _refuse(error)
            return
        write_message(ANSWERS, {"root": copy.root, "description": copy.description, "landlock": read_abi()})
        _serve(copy)
    except (EOFError, BrokenPipeError):  # promptiter has ended
        return
    finally:
        if os.getpid() != 1:
            end_processes(Descendants(), grace_s=0.0)


def _serve(copy: Copy) -> NoReturn:
    while True:
        message, data = read_message(REQUESTS)
        try:
            answer = _answer(copy, message, data)
        except _REFUSED as error:
            _refuse(error)
        else:
            if answer is not None:
                write_message(ANSWERS, *answer)


def _answer(copy: Copy, message: Message, data: bytes) -> tuple[Message, bytes] | None:
    what = message["what"]
    if what == "run":
        return _run(copy, message, data)
    if what == "read":
        content = read_file(copy.root, message["path"], max_bytes=message["max_bytes"])
        return {"exists": content is not None}, content or b""
    if what == "changes":
        return {"changes": copy.list_changes().to_json()}, b""
    if what == "tampering":
        return {"paths": copy.find_tampering()}, b""
    if what == "outside":
        return {"paths": copy.find_outside_changes()}, b""
    if what == "reveal":
        copy.reveal()
        return {}, b""
    if what == "cancel":  # of a command that ended just before
        return None
    raise RefusedFileError(f"unknown request {what!r}")


def _run(copy: Copy, message: Message, data: bytes) -> tuple[Message, bytes]:
    copy.prepare_run()
    cwd = message["cwd"]
    request = CommandRequest(
        command=message["command"],
        environment=copy.adapt_environment(message["environment"]),
        cwd=copy.root if cwd == "." else f"{copy.root}/{cwd}",
        stdin=data,
        timeout_s=message["timeout_s"],
        grace_s=message["grace_s"],
        max_output_bytes=message["max_output_bytes"],
    )
    outcome = run_command(request, copy.restrict(), messages=REQUESTS)
    return outcome.to_json(), outcome.stdout + outcome.stderr


def _read_open(message: Message, data: bytes) -> OpenRequest:
    files, start = {}, 0
    for path, size in message["files"]:
        files[path] = data[start : start + size]
        start += size
    rest = {name: value for name, value in message.items() if name != "files"}
    return OpenRequest(files=files, **rest)


def _refuse(error: Exception) -> None:
    write_message(ANSWERS, {"error": str(error)[:_MAX_ERROR], "class": type(error).__name__})


def _stay_with_parent(kind: str) -> None:
    """End when the parent does. Processes of namespaces end with it; others are found as descendants."""
    if not sys.platform.startswith("linux"):
        return
    if kind == "namespaces":
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    signal.signal(signal.SIGTERM, lambda *_: _end_requests())
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def _end_requests() -> None:
    """Let the next read of a request find its end, also if another process keeps the pipe open."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, REQUESTS)
    os.close(nothing)


if __name__ == "__main__":
    main()
