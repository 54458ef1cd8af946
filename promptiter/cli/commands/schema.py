"""`promptiter schema`: the JSON Schemas of promptiter.yaml and task.yaml."""

from __future__ import annotations

from typing import Annotated

import typer

from promptiter.cli.options import Output
from promptiter.cli.output import write_text


def schema(
    output: Output = None,
    task: Annotated[bool, typer.Option("--task", help="The schema of task.yaml.")] = False,
) -> None:
    """Print the JSON Schema of promptiter.yaml, for editors.

    Write it beside promptiter.yaml, and name it in the first line of that file:
    `# yaml-language-server: $schema=promptiter.schema.json`. `promptiter init` does both.
    For task.yaml, `promptiter task init` does the same.
    """
    from promptiter.config.schema import read_schema
    from promptiter.config.task_yaml.task_schema import read_task_schema

    write_text((read_task_schema() if task else read_schema()).decode(), output)
