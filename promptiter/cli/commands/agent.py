"""`promptiter agent serve`: serve an agent over HTTP, for a promptiter in another process or on another machine."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.help import PlainCommand
from promptiter.cli.load import build_subject, read_subject
from promptiter.cli.options import Subject
from promptiter.cli.output import echo

if TYPE_CHECKING:
    from promptiter.agents.remote.service import AgentService

app = typer.Typer(help="Serve an agent over HTTP.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Serve an agent over HTTP."""


@app.command(cls=PlainCommand)
def serve(
    subject: Subject = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="The port; with 0, a free one.")] = 8789,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="PROMPTITER_TOKEN",
            show_envvar=False,
            help="What callers must send as bearer token, or PROMPTITER_TOKEN. Required if HOST is not loopback.",
        ),
    ] = None,
) -> None:
    """Serve an agent over HTTP.

    In a promptiter.yaml elsewhere it is `agent: {remote: ADDRESS}`. Its model calls go to the promptiter that sends a
    run; for other callers, the models of the configuration are called. Ctrl-C stops it.
    """
    from promptiter.agents.remote.service import AgentService
    from promptiter.config.build import build_configured_gateway
    from promptiter.endpoint.standalone import check_address

    check_address(host, token)
    parsed = read_subject(subject)
    service = AgentService(build_subject(parsed), gateway=build_configured_gateway(parsed), token=token)
    asyncio.run(_serve(service, host=host, port=port))


async def _serve(service: AgentService, *, host: str, port: int) -> None:
    from promptiter.agents.remote.service import serve_agent

    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    name = service.agent.describe().name or "the agent"
    async with serve_agent(service, host=host, port=port) as address:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        echo(f"Serving {name} on {address}. Press Ctrl-C to stop.")
        await stopping.wait()
