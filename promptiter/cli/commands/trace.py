"""`promptiter trace`: show, summarize and convert execution traces."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.commands.trace_to_evalset import to_evalset
from promptiter.cli.help import PlainCommand
from promptiter.cli.options import AsJson, Output, find_run_folder
from promptiter.cli.output import OutputFormat, console, echo, guess_format, json_text, write_text
from promptiter.llm.redaction import process_redactor
from promptiter.wording import join_names, plural
from traces import ExecutionTrace, TraceError, read, write_otel, write_traces
from traces.documents import from_json, to_json
from traces.draw.diagram import Diagram
from traces.otel.write import guess_encoding

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(help="Show, summarize and convert execution traces.", no_args_is_help=True)

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="Traces as JSON lines, or an OTLP export (JSON, protobuf); - is standard input."
    ),
]


class Encoding(StrEnum):
    """The formats that `trace export` writes."""

    json = "json"
    otlp_json = "otlp-json"
    otlp_protobuf = "otlp-protobuf"


@app.command(cls=PlainCommand)
def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|RUN",
            help="Traces as JSON lines, or an OTLP export (JSON, protobuf), - for standard input; or, with --case, a "
            "run: its folder, its id or `latest`.",
        ),
    ],
    case: Annotated[
        str | None, typer.Option("--case", metavar="ID", help="Show the traces that a run has of this case.")
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--run", min=1, metavar="N", help="With --case: which run of the case; by default the last."),
    ] = None,
    trace_id: Annotated[
        str | None, typer.Option("--trace", metavar="ID", help="Which trace, if the file has several.")
    ] = None,
    output_format: Annotated[
        OutputFormat | None,
        typer.Option("--format", metavar="FORMAT", help="text, mermaid, svg or json; by default from --output."),
    ] = None,
    by_node: Annotated[
        bool | None,
        typer.Option(
            "--by-node/--by-step",
            help="In pictures, one box per node or per step. Default: per step, up to 25 boxes.",
            show_default=False,
        ),
    ] = None,
    unfold: Annotated[
        bool, typer.Option("--unfold", help="In pictures, give every step its own box: do not fold parallel steps.")
    ] = False,
    outputs: Annotated[
        bool | None,
        typer.Option(
            "--outputs/--no-outputs",
            help="As text, print what each step returned, up to 300 characters. Default: with --case.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Steps or traces to list as text; 0 lists all.")] = 200,
    output: Output = None,
) -> None:
    """Show a trace: steps, times, tokens, outputs, errors.

    The path that led to the first failure is marked. With --case, shows the runs of one case in a promptiter run.
    --format json has everything that each step got, read and returned.
    """
    from promptiter.cli.views import trace as trace_view
    from traces.draw.mermaid import to_mermaid
    from traces.draw.svg import to_svg

    output_format = output_format or guess_format(output)
    if case is not None:
        chosen, before = _read_case_traces(find_run_folder(str(file), None), case, number, trace_id)
    elif trace_id is None and output_format is OutputFormat.text:
        chosen, before = list(_read(file)), None
    else:
        chosen, before = [_choose(_read(file), trace_id, file)], None
    match output_format:
        case OutputFormat.text if case is None and len(chosen) != 1:
            trace_view.print_list(console(output), chosen, limit=limit)
        case OutputFormat.text:
            screen = console(output)
            if before is not None:
                screen.print(before)
                screen.print()
            for trace in chosen:
                trace_view.print_trace(
                    screen, trace, limit=limit, outputs=case is not None if outputs is None else outputs
                )
        case OutputFormat.json:
            write_text(to_json(chosen[-1]).decode() + "\n", output)
        case _:
            drawing = _draw(chosen[-1], by_node=by_node, unfold=unfold)
            write_text(to_svg(drawing) if output_format is OutputFormat.svg else to_mermaid(drawing), output)


@app.command("import", cls=PlainCommand)
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Exports of spans, and of the log records that belong to them: OTLP (JSON, JSON lines, protobuf), the "
            "Python SDK's JSON, Jaeger, Phoenix, Langfuse, Logfire; also gzip and zstd. - is standard input.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write; .gz compresses. - prints.")
    ],
    edges: Annotated[
        Path | None,
        typer.Option(
            "--edges",
            metavar="FILE",
            help="Edges that you know, which replace guessed ones: lines `planner -> researcher`, the same as YAML or "
            "JSON, or the JSON of a LangGraph graph.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Keep reading what is appended, and write runs as they end, until Ctrl-C."),
    ] = False,
    quiet_s: Annotated[
        float,
        typer.Option(
            "--quiet", min=0, metavar="SECONDS", help="With --follow: a run has ended after this time without a span."
        ),
    ] = 10,
    max_attribute_mb: Annotated[
        int, typer.Option("--max-attribute-mb", min=1, metavar="MB", help="Refuse attributes that are larger.")
    ] = 32,
    as_json: AsJson = False,
) -> None:
    """Turn exported spans of any agent framework into traces.

    Says what was taken over: spans read, folded into steps and dropped, and how it is known which step followed which.
    """
    from promptiter.cli.trace_follow import follow_files, show_progress
    from promptiter.cli.views import trace_import as view
    from traces import stream_otel
    from traces.otel.recover.coverage import Coverage

    coverage = Coverage()
    if follow:
        from traces.otel.follow import Follower

        with Follower(
            *files, coverage=coverage, edges=edges, quiet_s=quiet_s, max_attribute_mb=max_attribute_mb
        ) as follower:
            follow_files(follower, files, output, redact=_redact)
    else:
        sources = [_name_input(file) for file in files]
        found = map(_redact, stream_otel(*sources, coverage=coverage, edges=edges, max_attribute_mb=max_attribute_mb))
        with show_progress(coverage):
            if str(output) == "-":
                for trace in found:
                    write_text(to_json(trace).decode() + "\n", None)
            else:
                write_traces(output, found)
    if as_json:
        echo(json_text(coverage.to_json()).rstrip(), err=str(output) == "-")
    else:
        view.print_coverage(coverage, output)


app.command("to-evalset", cls=PlainCommand)(to_evalset)


@app.command(cls=PlainCommand)
def stats(
    file: File,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Summarize the traces of a file by status and by node."""
    from promptiter.cli.views import trace as trace_view
    from traces.stats import compute_statistics

    statistics = compute_statistics(_read(file))
    if as_json:
        write_text(json_text(statistics), output)
    else:
        trace_view.print_statistics(console(output), statistics)


@app.command(cls=PlainCommand)
def export(
    file: File,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write; .gz compresses.")],
    trace_id: Annotated[str | None, typer.Option("--trace", metavar="ID", help="Only this trace.")] = None,
    encoding: Annotated[
        Encoding | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="json, otlp-json or otlp-protobuf; by default from --output: .jsonl, .otlp.jsonl, .pb.",
        ),
    ] = None,
) -> None:
    """Convert traces to JSON lines or OTLP spans."""
    encoding = encoding or _choose_encoding(output)
    chosen = _read(file) if trace_id is None else iter([_choose(_read(file), trace_id, file)])
    if encoding is Encoding.json:
        echo(f"{write_traces(output, chosen):,} traces written to {output}")
    else:
        spans = write_otel(output, chosen, encoding="protobuf" if encoding is Encoding.otlp_protobuf else "json")
        echo(f"{spans:,} spans written to {output}")


def _read_case_traces(
    folder: Path, case_id: str, number: int | None, trace_id: str | None
) -> tuple[list[ExecutionTrace], RenderableType]:
    """Read the traces of one run of a case, one per turn, and a table of all its runs with the error of that one."""
    from promptiter.cli.views.case import choose_run
    from promptiter.runs.case_history import read_case, read_traces

    history = read_case(folder, case_id)
    count = len(history.runs)
    if (number is not None and number > count) or not count:
        raise TraceError(f"case {case_id!r} has {plural(count, 'run')} so far; choose one of them with --run")
    chosen = number or count
    traces = read_traces(folder, history.runs[chosen - 1])
    if not traces:
        raise TraceError(f"run {chosen} of {case_id!r} has no trace: see `keep_traces` in promptiter.yaml")
    if trace_id is not None:
        traces = [_choose(iter(traces), trace_id, folder)]
    return traces, choose_run(history, chosen)


def _draw(trace: ExecutionTrace, *, by_node: bool | None, unfold: bool) -> Diagram:
    from traces.draw.trace_diagram import draw_nodes, draw_steps, needs_node_view

    if by_node and unfold:
        raise typer.BadParameter("--unfold shows every step, so it cannot be combined with --by-node")
    if by_node is None and not unfold and needs_node_view(trace):
        echo(
            f"{len(trace.steps):,} steps: shown with one box per node; use --by-step for steps, --unfold for every one",
            err=True,
        )
        by_node = True
    return draw_nodes(trace) if by_node else draw_steps(trace, unfold=unfold)


def _read(file: Path) -> Iterator[ExecutionTrace]:
    """Read the traces of a file, without secrets of the environment, since output may be shared."""
    if (file / "run.json").is_file():
        raise TraceError(f"{file} is a run; choose a case with --case ID, or use `promptiter show {file}`")
    yield from map(_redact, read(_name_input(file)))


def _redact(trace: ExecutionTrace) -> ExecutionTrace:
    raw = to_json(trace)
    safe = process_redactor().redact_known_document(raw)
    return trace if safe is raw else from_json(safe)


def _name_input(file: Path) -> Path:
    return Path("/dev/stdin") if str(file) == "-" else file


def _choose_encoding(output: Path) -> Encoding:
    if guess_encoding(output) == "protobuf":
        return Encoding.otlp_protobuf
    name = output.name.removesuffix(".gz")
    if not name.endswith((".json", ".jsonl")):
        raise TraceError(f"unknown format: {output.name!r}; name it .jsonl, .otlp.jsonl or .pb, or use --to")
    return Encoding.otlp_json if ".otlp." in name else Encoding.json


def _choose(traces: Iterator[ExecutionTrace], trace_id: str | None, file: Path) -> ExecutionTrace:
    """The trace with this id, or the only one."""
    ids = []
    for trace in traces:
        if trace.id == trace_id:
            return trace
        ids.append(trace.id)
    if not ids:
        raise TraceError(f"{file} has no traces")
    if trace_id is None and len(ids) == 1:
        return trace
    if trace_id is None:
        raise TraceError(f"{file} has {len(ids):,} traces: choose one with --trace ID ({join_names(ids, limit=5)})")
    nearest = get_close_matches(trace_id, ids[:2_000], n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {join_names(ids, limit=5)}"
    raise TraceError(f"{file} has no trace {trace_id!r}; {hint}")
