"""`promptiter run --review`: a person at the terminal approves, edits or vetoes each patch before it is tried."""

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

from promptiter.cli.views.diff import diff
from promptiter.engine.review import Review, ReviewRequest
from promptiter.errors import SetupError, SurfaceValueError
from traces.model import Json
from traces.text import cut, one_line

END_OF_TEXT = "."
"""Alone on a line, it ends a text that is typed in."""

LONGEST_REASON = 1000

ReadLine: TypeAlias = Callable[[], Awaitable[str]]
"""Gives the next line that is typed, with its line break; an empty text at the end of the input."""


def check_terminal() -> None:
    """A review needs somebody to ask; SetupError where there is nobody."""
    if not sys.stdin.isatty():
        raise SetupError("review: standard input is no terminal, so nobody can be asked; leave --review out")


async def read_line() -> str:
    """The next line of the terminal. The event loop goes on meanwhile, and whoever waits can be cancelled."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()


class TerminalReviewer:
    """A Reviewer that shows a patch on a console and asks what to do with it; `paused` gives it the terminal."""

    def __init__(
        self,
        console: Console,
        *,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
        read: ReadLine = read_line,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._console = console
        self._paused = paused
        self._read = read
        self._environ = os.environ if environ is None else environ

    async def review(self, request: ReviewRequest) -> Review:
        with self._paused():
            self._show(request)
            return await self._decided(request)

    def _show(self, request: ReviewRequest) -> None:
        screen, signal = self._console, request.signal
        count = len(signal.case_ids)
        screen.rule(Text(one_line(request.surface.id), "bold cyan"), align="left", style="dim")
        screen.print(Text.assemble((f"blamed by {count} case{'s' * (count != 1)}  ", "bold"), _short(signal.text)))
        if request.patch.reason:
            screen.print(Text.assemble(("the patch  ", "bold"), _short(request.patch.reason)))
        screen.print()
        screen.print(Padding(diff(request.surface.value, request.patch.value), (0, 0, 0, 2)))
        screen.print()

    async def _decided(self, request: ReviewRequest) -> Review:
        while True:
            answer = await self._ask("(a)pprove, (e)dit or (v)eto? ")
            if answer is None:
                return Review(action="veto", reason="nobody answered")
            match answer.strip().lower():
                case "a" | "approve":
                    return Review(action="approve")
                case "v" | "veto":
                    return Review(action="veto", reason=(await self._ask("why? ") or "").strip())
                case "e" | "edit":
                    if (edited := await self._edited(request)) is not None:
                        return edited
                case _:
                    self._console.print("type a, e or v")

    async def _edited(self, request: ReviewRequest) -> Review | None:
        """The value as the person wants it; None if they changed their mind, or it cannot be used."""
        value = request.patch.value
        text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
        new = await self._rewritten(text)
        if new is None or new == text:
            self._console.print("nothing was changed")
            return None
        try:
            edited: Json = new if isinstance(value, str) else orjson.loads(new)
            request.surface.check(edited)
        except orjson.JSONDecodeError as error:
            self._console.print(Text(f"this is not valid JSON: {error}", "red"))
        except SurfaceValueError as error:
            self._console.print(Text(f"this cannot be used: {error.problem}", "red"))
        else:
            return Review(action="edit", value=edited, reason="by hand")
        return None

    async def _rewritten(self, text: str) -> str | None:
        editor = self._environ.get("VISUAL") or self._environ.get("EDITOR")
        if editor:
            return await self._in_editor(editor, text)
        self._console.print(f"type the whole new text, and end it with a line that has only '{END_OF_TEXT}'")
        lines = []
        while (line := await self._read()) and line.rstrip("\n") != END_OF_TEXT:
            lines.append(line)
        return "".join(lines).removesuffix("\n") or None

    async def _in_editor(self, editor: str, text: str) -> str | None:
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
        """The line that is typed; None at the end of the input."""
        self._console.print(Text(question, "bold"), end="")
        return await self._read() or None


def _short(text: str) -> str:
    return cut(one_line(" ".join(text.split())), LONGEST_REASON)
