"""`promptiter trace to-evalset`: make eval cases of recorded runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from promptiter.cli.options import AsJson
from promptiter.cli.output import echo, json_text
from promptiter.errors import EvalSetError
from traces.files import TraceSource, write_atomically


def to_evalset(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACES...",
            help="Traces as JSON lines, or exports of spans of any framework, with their log records; - is standard "
            "input.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write. - prints.")],
    feedback: Annotated[
        Path | None,
        typer.Option(
            "--feedback",
            metavar="FILE",
            help="What people said about the runs: CSV or JSON lines with trace_id or conversation_id, and rating, "
            "score, comment or expected.",
        ),
    ] = None,
    good_from: Annotated[
        float | None,
        typer.Option(
            "--good-from",
            metavar="N",
            help="The lowest score that is good. Default: 0.5 of 1, 4 of 5, 7 of 10, 70 of 100.",
            show_default=False,
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--most", min=1, metavar="N", help="Sample at most N cases, of every outcome and route."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Random seed.")] = 0,
    keep_personal_data: Annotated[
        bool,
        typer.Option(
            "--keep-personal-data",
            help="Keep e-mail and IP addresses, phone, card and account numbers. Secrets are always redacted.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make eval cases of recorded runs.

    A case has the question and what was said before it. Its reference is the recorded answer if feedback says that it
    was good, or the answer that feedback expects. Personal data becomes placeholders, and near duplicates are left out.
    """
    from promptiter.cli.views.trace_to_evalset import as_document, print_cases
    from promptiter.evaluation.data.evalset_rows import write_lines
    from promptiter.tasks.cases_from_traces import cases_from_traces
    from promptiter.tasks.feedback import load_feedback
    from promptiter.tasks.trace_files import read_trace_files
    from traces.otel.recover.coverage import Coverage

    coverage = Coverage()
    is_printed = str(output) == "-"
    if not is_printed and output.suffix not in (".jsonl", ".ndjson"):
        raise EvalSetError(f"cases are written as JSON lines, and {output.name!r} names another format; name it .jsonl")
    made = cases_from_traces(
        read_trace_files(map(_open_input, files), coverage=coverage),
        None if feedback is None else load_feedback(feedback, good_from=good_from),
        most=most,
        seed=seed,
        keep_personal_data=keep_personal_data,
    )
    raw = write_lines(made.cases)
    if is_printed:
        echo(raw.decode(), nl=False)
    else:
        with write_atomically(output) as file:
            file.write(raw)
    if as_json:
        echo(json_text(as_document(made, coverage)).rstrip(), err=is_printed)
    else:
        print_cases(made, coverage, None if is_printed else output)


def _open_input(file: Path) -> TraceSource:
    """A file as it is; standard input and pipes, which can be read only once, as bytes."""
    if str(file) == "-":
        return sys.stdin.buffer.read()
    return file.read_bytes() if file.is_fifo() else file
