"""`promptiter gateway`: serve the gateway over HTTP, for agents in any language."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.load import collect_settings
from promptiter.cli.options import MaxUsd
from promptiter.cli.output import console, echo
from promptiter.errors import SetupError

if TYPE_CHECKING:
    from rich.console import Console

    from promptiter.endpoint.recording import TraceFile
    from promptiter.endpoint.sessions import EndpointCall, EndpointSession
    from promptiter.llm.gateway import Gateway


def gateway(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="Models, budget, rate limits and cache: a configuration file or its folder; by default "
            "promptiter.yaml if there is one.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="The port; with 0, a free one.")] = 8787,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="PROMPTITER_TOKEN",
            show_envvar=False,
            help="The key of callers, or PROMPTITER_TOKEN; by default a random one. Required if HOST is not loopback.",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Where model answers are cached: memory, or a .jsonl or .sqlite file."),
    ] = None,
    max_usd: MaxUsd = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Write the calls as traces, one for each conversation."),
    ] = None,
) -> None:
    """Serve models over HTTP, for agents in any language.

    Any client of OpenAI or Anthropic that takes a base URL can use it: the command prints the variables to export.
    Answers are cached, and calls are counted, limited and retried by promptiter. Ctrl-C stops it.
    """
    from promptiter.endpoint.standalone import check_address

    check_address(host, token)
    if record is not None and not record.absolute().parent.is_dir():
        raise SetupError(f"{str(record)!r} cannot be written: its folder does not exist")
    built = _build_gateway(config, cache=cache, max_usd=max_usd)
    try:
        asyncio.run(_serve(built, host=host, port=port, token=token, record=record))
    finally:
        built.cache.close()


def _build_gateway(config: Path | None, *, cache: str | None, max_usd: float | None) -> Gateway:
    from promptiter.config.build import build_configured_gateway
    from promptiter.config.file import FILE_NAME, read_config, read_document

    settings = collect_settings(cache=cache if cache in (None, "memory") else Path(cache), budget={"max_usd": max_usd})
    if config is None and not Path(FILE_NAME).exists():
        return build_configured_gateway(read_document({}, file=Path(FILE_NAME), settings=settings))
    return build_configured_gateway(read_config(config or Path(FILE_NAME), settings=settings))


async def _serve(gateway: Gateway, *, host: str, port: int, token: str | None, record: Path | None) -> None:
    from promptiter.endpoint.recording import TraceFile
    from promptiter.endpoint.standalone import serve_gateway

    screen = console()
    file = TraceFile(record, gateway.redactor) if record is not None else None
    stopping, loop, is_served = asyncio.Event(), asyncio.get_running_loop(), False
    writing = loop.create_task(file.keep_written()) if file is not None else None

    def on_call(call: EndpointCall) -> None:
        if file is not None:
            file.add(call)
        _print_call(screen, call)

    def stop(session: EndpointSession) -> None:
        if stopping.is_set():
            session.cancel()  # the second time: do not wait for calls under way
        stopping.set()

    try:
        async with serve_gateway(gateway, host=host, port=port, token=token, on_call=on_call) as session:
            is_served = True
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop, session)
            echo(f"Serving on {session.base_url}. Press Ctrl-C to stop.\n")
            for name, value in session.environment.items():
                if name != "OPENAI_API_BASE":
                    echo(f"export {name}={value}")
            echo()
            await stopping.wait()
    finally:
        if writing is not None:
            writing.cancel()
        if is_served:
            _print_end(gateway, file)


def _print_call(screen: Console, call: EndpointCall) -> None:
    """`planner  gpt-4o-mini  312 tokens in, 40 out  0.8 s`, or the error."""
    seconds = f"{(call.end_ns - call.start_ns) / 1e9:.1f} s"
    parts = [call.conversation, call.node, call.request.model]
    if call.reply is not None and call.reply.usage.input_tokens is not None:
        parts.append(f"{call.reply.usage.input_tokens:,} tokens in, {call.reply.usage.output_tokens or 0:,} out")
    if call.error is not None:
        parts.append(call.error.text)
    screen.print("  ".join([part for part in parts if part] + [seconds]), markup=False, highlight=False, soft_wrap=True)


def _print_end(gateway: Gateway, file: TraceFile | None) -> None:
    from promptiter.runs.cost_wording import describe_usage
    from promptiter.wording import plural

    spent = gateway.ledger.snapshot().of_models
    echo(f"\n{plural(spent.calls, 'model call')}, {spent.cache_hits:,} cached, {describe_usage(spent)}")
    if file is not None:
        echo(f"{plural(file.write(), 'trace')} written to {file.path}")
