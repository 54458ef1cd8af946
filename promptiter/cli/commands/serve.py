"""`promptiter serve`: the runs of one or more projects over HTTP. `promptiter token`: who may use it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from promptiter.cli.output import echo, log_to_standard_error
from promptiter.cli.places import describe_store
from promptiter.errors import RequestError, SetupError
from promptiter.wording import plural

if TYPE_CHECKING:
    from promptiter.manager import ConfiguredApp
    from promptiter.server.tokens import Tokens

DAYS = 90
SWEEP_S = 5.0
"""How often a server looks for runs that no process works on, unless leases are short."""


def serve(
    configs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CONFIG...", help="Configuration files or their folders; by default promptiter.yaml."),
    ] = None,
    store: Annotated[
        str, typer.Option(metavar="PLACE", help="Where runs are stored: a folder, or the URL of a database.")
    ] = "sqlite:///promptiter.db",
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="The port; with 0, a free one.")] = 8788,
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Who may do what; see `promptiter token`. Required if HOST is not loopback."),
    ] = None,
    max_runs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time; the others wait.")] = 4,
    on_lost: Annotated[
        Literal["resume", "mark"],
        typer.Option(help="What happens to a run whose process died: it is resumed, or marked as failed."),
    ] = "resume",
    keep_days: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Delete runs that have ended, N days after their start.")
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Delete runs that have ended, but the last N of an app."),
    ] = None,
    lease_s: Annotated[
        float,
        typer.Option(
            min=1.0, metavar="SECONDS", help="Other servers continue the runs of one that is silent for so long."
        ),
    ] = 60.0,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long runs may finish calls when the server stops.")
    ] = 30.0,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Allow requests of web pages from there. Repeatable.")
    ] = None,
    allow_agent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]", help="Where agents that are services may be. Repeatable; by default anywhere."
        ),
    ] = None,
    requests_per_minute: Annotated[
        int, typer.Option(min=1, metavar="N", help="The most requests of one token, or of one address.")
    ] = 6000,
    max_body_mb: Annotated[float, typer.Option(min=0.001, metavar="MB", help="The largest body of a request.")] = 4.0,
    max_streams: Annotated[int, typer.Option(min=1, metavar="N", help="The most streams of events at a time.")] = 1000,
    run_timeout_s: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="How long a request may wait for the result of a run.")
    ] = 3600.0,
) -> None:
    """Serve runs over HTTP.

    Start them from anywhere, watch them, cancel them. Each CONFIG is an app: `POST /promptiter/v1/apps/NAME/async-runs`
    starts a run of it. Runs are stored in a database, and outlive the server: if it is killed, the next one continues
    them. Ctrl-C stops it when calls in progress have ended; a second one stops it at once.
    """
    from promptiter.server import check_packages

    check_packages()
    from promptiter.manager import Manager
    from promptiter.runs.stores import open_store
    from promptiter.server.limits import Limits
    from promptiter.server.retention import Retention
    from promptiter.server.serving import ServerOptions
    from promptiter.server.serving import serve as serve_manager

    known = None if tokens is None else _load_tokens(tokens)
    options = ServerOptions(
        host=host,
        port=port,
        tokens=known,
        limits=Limits(
            max_body_bytes=int(max_body_mb * 1e6),
            requests_per_minute=requests_per_minute,
            max_streams=max_streams,
            run_timeout_s=run_timeout_s,
        ),
        cors_origins=tuple(cors or ()),
        retention=Retention(keep_days=keep_days, keep_last=keep_last),
    )
    options.check()
    _check_hosts(allow_agent or ())
    apps = _load_apps(configs or [Path()], allow_agent or None)

    def announce(address: str) -> None:
        echo(f"Serving {', '.join(each.name for each in apps)} on {address}. Press Ctrl-C to stop.")
        echo(f"  runs:   {describe_store(store)}")
        echo(f"  tokens: {'off; everyone on this machine may do everything' if tokens is None else tokens}")
        echo(f"  API:    {address}/promptiter/v1/openapi.json")

    async def run() -> None:
        manager = Manager(
            apps,
            store=open_store(store, lease_s=lease_s),
            max_runs=max_runs,
            on_lost=on_lost,
            sweep_s=min(SWEEP_S, lease_s / 4),
            close_timeout_s=shutdown_timeout,
        )
        await serve_manager(manager, options, on_start=announce)

    log_to_standard_error("promptiter")
    asyncio.run(run())


def _load_apps(configs: Sequence[Path], allowed_agents: Sequence[str] | None) -> list[ConfiguredApp]:
    """The apps of configuration files. All problems of all files are reported together."""
    from promptiter.manager import ConfiguredApp

    apps, problems = [], []
    for each in configs:
        try:
            apps.append(ConfiguredApp(each, allowed_agents=allowed_agents))
        except RequestError as error:
            problems += [_name_file(each, problem) for problem in error.problems]
        except SetupError as error:
            problems.append(_name_file(each, str(error)))
    if problems:
        count = plural(len(problems), "problem")
        raise SetupError("\n  - ".join([f"the server cannot start, it has {count}:", *problems]))
    return apps


def _name_file(config: Path, problem: str) -> str:
    """A problem of a configuration, with its file."""
    from promptiter.config.file import FILE_NAME

    file = config / FILE_NAME if config.is_dir() else config
    return problem if problem.startswith(str(file)) else f"{file}: {problem}"


def _check_hosts(hosts: Sequence[str]) -> None:
    from promptiter.agents.black_box.hosts import AgentHosts

    try:
        AgentHosts.parse(hosts)
    except SetupError as error:
        raise SetupError(f"--allow-agent: {error}") from error


def _load_tokens(file: Path) -> Tokens:
    """The tokens of a file, with a warning for each that has expired."""
    from promptiter.server.tokens import Tokens

    tokens = Tokens.load(file)
    if not tokens.entries:
        raise SetupError(f"{str(file)!r} has no tokens; make one with `promptiter token NAME --file {file}`")
    for each in tokens.entries:
        if each.expires is not None and each.expires <= tokens.now():
            when = f"{each.expires:%Y-%m-%d}"
            echo(f"warning: the token {each.name!r} expired on {when}; make another with `promptiter token`", err=True)
    return tokens


def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who it is for, such as ci.")],
    file: Annotated[Path, typer.Option(metavar="FILE", help="The file of the server's tokens.")] = Path("tokens.yaml"),
    scope: Annotated[
        Literal["read", "run", "admin"],
        typer.Option(help="read: see runs. run: also start and cancel them. admin: also delete them."),
    ] = "run",
    app: Annotated[
        list[str] | None, typer.Option(metavar="APP", help="Only for this app. Repeatable; by default for all.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, metavar="N", help="Days until it expires.")] = DAYS,
) -> None:
    """Make a token for `promptiter serve`, and print it.

    The server reads the file with --tokens FILE. The file keeps only its hash. To revoke a token, delete its entry and
    restart the server.
    """
    from promptiter.server.tokens import add_token

    expires = (datetime.now(UTC) + timedelta(days=days)).replace(microsecond=0)
    text = add_token(file, name=name, scope=scope, apps=app or None, expires=expires)
    echo(text)
    echo(f"{name} may use it until {expires:%Y-%m-%d}; it is not shown again", err=True)
