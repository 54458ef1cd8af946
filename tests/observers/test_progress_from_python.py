"""RunProgress in scripts and notebooks: an observer of a run, without `with` and without a terminal."""

from __future__ import annotations

import asyncio
import io

from rich.console import Console

from promptiter import RunProgress
from tests.worlds import desk


def test_progress_is_plain_lines_without_a_terminal() -> None:
    shown = io.StringIO()
    progress = RunProgress(Console(file=shown, width=100))
    desk.engine(desk.DRAFT, desk.POLISH).run_sync(desk.request(), observers=[progress])
    lines = shown.getvalue().splitlines()
    assert any(line.startswith("baseline") for line in lines)
    assert "\x1b" not in shown.getvalue()


async def test_progress_works_inside_a_running_event_loop() -> None:
    """As in a notebook, where a loop runs already."""
    await asyncio.sleep(0)
    shown = io.StringIO()
    desk.engine(desk.DRAFT).run_sync(desk.request(), observers=[RunProgress(Console(file=shown, width=100))])
    assert "baseline" in shown.getvalue()
