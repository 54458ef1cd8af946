"""`promptiter trace import`: its progress on a terminal, and `--follow`, which writes runs as they end until Ctrl-C."""

from __future__ import annotations

import gzip
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from rich.live import Live
from rich.text import Text

from promptiter.cli.output import SteadyConsole, echo
from promptiter.wording import join_names, plural
from traces import ExecutionTrace, UnwritableTraceError
from traces.documents import to_json

if TYPE_CHECKING:
    from traces.otel.follow import Follower
    from traces.otel.recover.coverage import Coverage

POLL_S = 0.5
"""Seconds between two looks at the files."""


@contextmanager
def show_progress(coverage: Coverage, describe: Callable[[], str] | None = None) -> Iterator[None]:
    """On a terminal, show how far an import is, below what it prints."""
    screen = SteadyConsole()
    if not screen.is_terminal:
        yield
        return

    class Progress:
        def __rich__(self) -> Text:
            more = f", {describe()}" if describe is not None else ""
            return Text(f"{coverage.received:,} spans read, {plural(coverage.traces, 'run')} built{more}", style="dim")

    with Live(Progress(), console=screen, transient=True, refresh_per_second=4):
        yield


def follow_files(
    follower: Follower, files: Sequence[Path], output: Path, *, redact: Callable[[ExecutionTrace], ExecutionTrace]
) -> None:
    """Write the runs of these files as they end, until Ctrl-C or SIGTERM; then the rest."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _open_output(output) as file:

        def write(found: Sequence[ExecutionTrace]) -> None:
            for trace in found:
                file.write(to_json(redact(trace)) + b"\n")
            file.flush()

        echo(f"following {join_names([str(each) for each in files])}; press Ctrl-C to end", err=True)
        try:
            with show_progress(follower.coverage, lambda: f"{follower.waiting:,} not ended"):
                while True:
                    write(follower.look())
                    time.sleep(POLL_S)
        except KeyboardInterrupt:
            echo(err=True)
        write(follower.finish())


@contextmanager
def _open_output(output: Path) -> Iterator[IO[bytes]]:
    if str(output) == "-":
        yield sys.stdout.buffer
        return
    try:
        with cast("IO[bytes]", gzip.open(output, "wb") if output.suffix == ".gz" else output.open("wb")) as file:
            yield file
    except OSError as error:
        raise UnwritableTraceError(f"{str(output)!r} cannot be written: {error.strerror or error}") from error
