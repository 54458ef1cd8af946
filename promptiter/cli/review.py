"""`promptiter run --review`: approve, edit or veto each patch before it is tried, at the terminal.

With `--review file` the decisions are in files: see `promptiter/runs/file_review.py`.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeAlias

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from promptiter.cli.views.diff import diff_table
from promptiter.config.configured_run import ConfiguredRun
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.review import Review, Reviewer, ReviewRequest
from promptiter.errors import SetupError, SurfaceValueError
from promptiter.observers.progress import RunProgress
from promptiter.runs.file_review import FOLDER, FileReviewer
from promptiter.runs.summary_wording import shorten_reason
from promptiter.wording import plural
from traces.model import Json
from traces.text import one_line

END_OF_TEXT = "."
"""A line with only this ends a text that is typed in."""

MAX_REASON = 1000

ReadLine: TypeAlias = Callable[[], Awaitable[str]]
"""Returns the next line of input with its line break, or an empty string at the end of the input."""


def check_terminal() -> None:
    """SetupError unless standard input is a terminal, which a review needs."""
    if not sys.stdin.isatty():
        raise SetupError("review: standard input is not a terminal, so patches cannot be reviewed; remove --review")


def make_reviewer(
    configured: ConfiguredRun, folder: Path, progress: RunProgress, interrupt: Interrupt
) -> Reviewer | None:
    """The reviewer that a configuration asks for: a person at the terminal, or files in the folder of the run."""
    if configured.config.review == "file":
        return FileReviewer(
            folder / FOLDER,
            notify=progress.say,
            find_stop_request=lambda: interrupt.reason,
            redactor=configured.gateway.redactor,
        )
    return TerminalReviewer(progress.console, pause=progress.pause) if configured.config.review == "ask" else None


async def read_line() -> str:
    """Read the next line of the terminal without blocking the event loop; can be cancelled."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()


class TerminalReviewer:
    """A Reviewer that shows each patch on a console and asks what to do; `pause` frees the terminal for it."""

    def __init__(
        self,
        console: Console,
        *,
        pause: Callable[[], AbstractContextManager[None]] = nullcontext,
        read: ReadLine = read_line,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._console = console
        self._pause = pause
        self._read = read
        self._environ = os.environ if environ is None else environ

    async def review(self, request: ReviewRequest) -> Review:
        with self._pause():
            self._show(request)
            return await self._decide(request)

    def _show(self, request: ReviewRequest) -> None:
        screen, signal = self._console, request.signal
        screen.rule(Text(one_line(request.surface.id), "bold cyan"), align="left", style="dim")
        screen.print(
            Text.assemble((f"blamed by {plural(len(signal.case_ids), 'case')}  ", "bold"), _shorten(signal.text))
        )
        if request.patch.reason:
            screen.print(Text.assemble(("patch  ", "bold"), _shorten(request.patch.reason)))
        screen.print()
        screen.print(Padding(diff_table(request.surface.value, request.patch.value), (0, 0, 0, 2)))
        screen.print()

    async def _decide(self, request: ReviewRequest) -> Review:
        while True:
            answer = await self._ask("(a)pprove, (e)dit or (v)eto? ")
            if answer is None:
                return Review(action="veto", reason="no answer")
            match answer.strip().lower():
                case "a" | "approve":
                    return Review(action="approve")
                case "v" | "veto":
                    return Review(action="veto", reason=(await self._ask("why? ") or "").strip())
                case "e" | "edit":
                    if (edited := await self._edit(request)) is not None:
                        return edited
                case _:
                    self._console.print("type a, e or v")

    async def _edit(self, request: ReviewRequest) -> Review | None:
        """The edited value; None if it was not changed or is invalid."""
        value = request.patch.value
        text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
        new = await self._read_new_text(text)
        if new is None or new == text:
            self._console.print("no changes")
            return None
        try:
            edited: Json = new if isinstance(value, str) else orjson.loads(new)
            request.surface.check(edited)
        except orjson.JSONDecodeError as error:
            self._console.print(Text(f"this is not valid JSON: {error}", "red"))
        except SurfaceValueError as error:
            self._console.print(Text(f"this cannot be used: {error.problem}", "red"))
        else:
            if not (problem := request.find_problem(edited)):
                return Review(action="edit", value=edited, reason="by hand")
            self._console.print(Text(f"this cannot be used: {problem}", "red"))
        return None

    async def _read_new_text(self, text: str) -> str | None:
        editor = self._environ.get("VISUAL") or self._environ.get("EDITOR")
        if editor:
            return await self._open_editor(editor, text)
        self._console.print(f"type the new text, then a line with only '{END_OF_TEXT}'")
        lines = []
        while (line := await self._read()) and line.rstrip("\n") != END_OF_TEXT:
            lines.append(line)
        return "".join(lines).removesuffix("\n") or None

    async def _open_editor(self, editor: str, text: str) -> str | None:
        with tempfile.TemporaryDirectory(prefix="promptiter-") as folder:
            file = Path(folder) / "surface.md"
            file.write_text(f"{text}\n", encoding="utf-8")
            try:
                process = await asyncio.create_subprocess_exec(*shlex.split(editor), str(file))
            except OSError as error:
                self._console.print(Text(f"the editor {editor!r} cannot be started: {error.strerror or error}", "red"))
                return None
            if code := await process.wait():
                self._console.print(Text(f"the editor {editor!r} ended with exit code {code}", "red"))
                return None
            return file.read_text(encoding="utf-8", errors="replace").removesuffix("\n")

    async def _ask(self, question: str) -> str | None:
        """Ask for a line; None at the end of the input."""
        self._console.print(Text(question, "bold"), end="")
        return await self._read() or None


def _shorten(text: str) -> str:
    return shorten_reason(text, limit=MAX_REASON)
