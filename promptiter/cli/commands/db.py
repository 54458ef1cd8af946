"""`promptiter db`: the schema of a database that keeps runs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from promptiter.cli.help import PlainCommand
from promptiter.cli.options import Output
from promptiter.cli.output import echo, write_text

app = typer.Typer(help="Create, upgrade and print the schema of a database for runs.", no_args_is_help=True)


@app.command(cls=PlainCommand)
def upgrade(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The database: sqlite:///runs.db, postgresql://…, mysql://… or mariadb://…"),
    ],
) -> None:
    """Bring a database to the schema of this release, or create it.

    Back up the database first. Runs that older releases are working on must have ended.
    """
    from promptiter.runs.sql.address import parse_address
    from promptiter.runs.sql.database import Database

    database = Database(parse_address(url))
    for step in (steps := database.upgrade()):
        echo(f"{database.name}: schema {step.version} ({step.title})")
    if not steps:
        echo(f"{database.name} is up to date")


@app.command(cls=PlainCommand)
def sql(
    dialect: Annotated[
        Literal["sqlite", "postgresql", "mysql"],
        typer.Option("--dialect", metavar="NAME", help="sqlite, postgresql, or mysql, also for MariaDB."),
    ] = "postgresql",
    output: Output = None,
) -> None:
    """Print the schema as SQL, to apply it by hand."""
    from promptiter.runs.sql.migrations import format_schema

    write_text(format_schema(dialect), output)
