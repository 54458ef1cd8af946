"""RunProgress: the progress of a run on standard error, one line for each stage that ended.

On a terminal the current stage is shown below these lines: the round, cases done, the score so far, the cost, and an
estimate of the time left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from promptiter.llm.ledger import NOTHING, Spending
from promptiter.observers.progress_state import ProgressLine, ProgressState
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.events import Event
from promptiter.terminal import SafeConsole

LABEL_WIDTH = 12


class RunProgress:
    """An Observer that shows a run on a console: `with RunProgress() as progress: ...`.

    `spent` returns the cost of model calls so far; None if it is unknown.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        spent: Callable[[], Spending | None] = lambda: NOTHING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or SafeConsole(stderr=True, highlight=False)
        self._spent = spent
        self._clock = clock
        self._began = clock()
        self._state = ProgressState()
        self._live: Live | None = None

    def __enter__(self) -> RunProgress:
        self._began = self._clock()
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            self.console.print()

    def __rich__(self) -> RenderableType:
        seconds = self._clock() - self._began
        return Group(self._state.render_bar(), self._state.render_figures(self._spent(), seconds))

    async def observe(self, event: Event) -> None:
        """Show one event. Most events only update the current stage."""
        for line in self._state.update(event):
            self._print(line)

    def catch_up(self, events: Iterable[Event]) -> None:
        """Read the events of a run that is resumed, and print where it continues."""
        last = None
        for last in events:
            self._state.update(last)
        if last is None:
            return
        self._state.all_runs = 0  # their speed is unknown
        where = f"in round {last.round}, after event {last.seq}" if last.round else "before the first round"
        self.say(Text("the run is finished; nothing left to do" if is_finished(last) else f"resuming {where}", "bold"))

    def say(self, line: Text | str) -> None:
        """Print a line above the current stage."""
        self.console.print(line, soft_wrap=not self.console.is_terminal)

    def _print(self, line: ProgressLine) -> None:
        """Print a label and a text; on a terminal, wrapped lines of the text are indented."""
        label = Text(f"{line.label:<{LABEL_WIDTH}}" if line.label else "", "bold")
        if not self.console.is_terminal:
            self.say(Text.assemble(label, line.text))
            return
        grid = Table.grid()
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(label, line.text)
        self.console.print(grid)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Free the terminal, for a question to the user for example. The time does not count."""
        live, began = self._live, self._clock()
        if live is not None:
            live.stop()
        try:
            yield
        finally:
            self._began += self._clock() - began
            if live is not None and self._live is live:
                live.start()
