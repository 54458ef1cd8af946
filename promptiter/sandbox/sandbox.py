"""The sandbox that this machine has, found by trying, and copies that are opened in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from promptiter.agents.black_box.private_files import make_private_folder
from promptiter.concurrency import run_in_thread
from promptiter.errors import CommandError, SetupError
from promptiter.sandbox.plan import CopyPlan
from promptiter.sandbox.private_copy import PrivateCopy
from promptiter.sandbox.protocol import Message, read_message, write_message
from promptiter.sandbox.supervision import ENVIRONMENT, RefusedError, Supervisor, supervisor_command
from promptiter.sandbox.supervisor.landlock import SIGNAL_ABI

Kind: TypeAlias = Literal["namespaces", "landlock", "none"]
WantedKind: TypeAlias = Literal["auto", Kind]

_PROBE_TIMEOUT_S = 30.0
_REFUSED_OVERLAY = "OverlayRefusedError"
_PROBE = "rm -r folder && mkdir folder && echo new > folder/file && mv folder/file file && test ! -e folder/file"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How commands are kept from changing anything but their copy, and what keeps them, in words."""

    kind: Kind
    description: str

    @asynccontextmanager
    async def open(self, plan: CopyPlan) -> AsyncIterator[PrivateCopy]:
        """A copy, for as long as the block. Nothing is left of it afterwards, nor of what ran in it."""
        root = _check_root(plan.root)
        needs_folder = self.kind != "namespaces"
        with ExitStack() as stack:
            folder = stack.enter_context(make_private_folder()) if needs_folder else None
            supervisor = await Supervisor.start()
            try:
                try:
                    answer, _ = await supervisor.ask(*_describe_copy(self.kind, plan, root, folder), ending_s=None)
                except RefusedError as error:
                    if error.kind != _REFUSED_OVERLAY:
                        raise
                    await supervisor.close()
                    supervisor = await Supervisor.start()
                    folder = stack.enter_context(make_private_folder())
                    answer, _ = await supervisor.ask(*_describe_copy(self.kind, plan, root, folder), ending_s=None)
                seen = plan.root.absolute() if self.kind == "namespaces" else Path(answer["root"])
                yield PrivateCopy(supervisor, plan, root=seen)
            except RefusedError as error:
                raise CommandError(f"no private copy of {str(plan.root)!r} can be made: {error}") from error
            finally:
                await supervisor.close()
                if folder is not None:
                    await run_in_thread(stack.close)


@cache
def find_sandbox(wanted: WantedKind = "auto") -> Sandbox:
    """The sandbox of this machine, or the wanted kind. SetupError if the machine does not have that one."""
    if wanted == "none":
        return Sandbox("none", "not sandboxed: commands run with all rights of this user, as requested")
    problems = []
    kinds: tuple[Kind, ...] = ("namespaces", "landlock") if wanted == "auto" else (wanted,)
    for kind in kinds:
        found, is_problem = _try_kind(kind)
        if not is_problem:
            return Sandbox(kind, found)
        problems.append(f"{kind}: {found}")
    why = "; ".join(problems)
    if wanted != "auto":
        raise SetupError(f"this machine has no sandbox of the kind {wanted!r} ({found}); use 'auto', or another kind")
    return Sandbox("none", f"not sandboxed: {why}")


def _try_kind(kind: Kind) -> tuple[str, bool]:
    """Open a small copy and run a command in it. Returns a description, or what is missing and True."""
    with make_private_folder() as place:
        root, folder = place / "root", place / "copy"
        (root / "folder").mkdir(parents=True)
        (root / "folder" / "inner").write_text("old")
        folder.mkdir()
        for copied in (None, folder) if kind == "namespaces" else (folder,):
            plan = CopyPlan(root=root, disk_bytes=1 << 20)
            answers, errors = _ask_once(kind, plan, root, copied)
            if len(answers) == 2 and answers[1].get("code") == 0:
                return _describe(answers[0]), False
            refused = answers[0] if answers else {}
            if refused.get("class") != _REFUSED_OVERLAY:
                break
        reason = next((str(answer["error"]) for answer in answers if "error" in answer), errors or "a test failed")
        return reason, True


def _ask_once(kind: Kind, plan: CopyPlan, root: Path, folder: Path | None) -> tuple[list[Message], str]:
    """Open a copy and run the probe, without an event loop. Returns the answers, and what was written to stderr."""
    run = {
        "what": "run",
        "command": ["/bin/sh", "-c", _PROBE],
        "environment": ENVIRONMENT,
        "cwd": ".",
        "timeout_s": _PROBE_TIMEOUT_S,
        "grace_s": 1.0,
        "max_output_bytes": 10_000,
    }
    process = subprocess.Popen(
        supervisor_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=ENVIRONMENT,
        start_new_session=True,
    )
    answers = []
    with process, _killed_after(process, _PROBE_TIMEOUT_S):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for message, data in (_describe_copy(kind, plan, root, folder), (run, b"")):
                write_message(process.stdin.fileno(), message, data)
                answers.append(read_message(process.stdout.fileno())[0])
        except (EOFError, BrokenPipeError):
            pass
        process.stdin.close()
        errors = process.stderr.read()
    return answers, errors.decode(errors="replace").strip().rpartition("\n")[2]


@contextmanager
def _killed_after(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _describe(answer: Message) -> str:
    weak = answer["landlock"] < SIGNAL_ABI and answer["description"].startswith("Landlock")
    return f"{answer['description']}{'; commands can signal other processes' if weak else ''}"


def _describe_copy(kind: Kind, plan: CopyPlan, root: Path, folder: Path | None) -> tuple[dict[str, Any], bytes]:
    """The request that opens a copy."""
    contents = {
        path: content.encode(errors="surrogateescape") if isinstance(content, str) else content
        for path, content in plan.files.items()
    }
    needed = {plan.root.absolute(), root, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable)}
    message = {
        "kind": kind,
        "root": str(root),
        "folder": None if folder is None else str(folder),
        "files": [[path, len(content)] for path, content in contents.items()],
        "hidden": sorted(plan.hidden),
        "repositories": sorted(plan.repositories),
        "protected": sorted(plan.protected),
        "visible": sorted(map(str, needed)),
        "disk_bytes": plan.disk_bytes,
        "processes": plan.processes,
        "memory_bytes": plan.memory_bytes,
        "network": plan.network,
    }
    return message, b"".join(contents.values())


def _check_root(root: Path) -> Path:
    """The real path of the folder to copy."""
    real = Path(os.path.realpath(root))
    if not real.is_dir():
        raise SetupError(f"the folder {str(root)!r} does not exist; correct the path of the workspace")
    around = [Path(each) for each in ("/proc", "/dev", tempfile.gettempdir())]
    if real == Path("/") or any(each == real or real in each.parents for each in around):
        raise SetupError(f"a private copy of {str(root)!r} cannot be made; put the files into a folder of their own")
    return real
