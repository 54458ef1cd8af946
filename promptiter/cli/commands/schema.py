"""`promptiter schema`: the JSON Schema of promptiter.yaml."""

from __future__ import annotations

from promptiter.cli.options import Output
from promptiter.cli.output import write_text


def schema(output: Output = None) -> None:
    """Print the JSON Schema of promptiter.yaml, for editors.

    Write it beside promptiter.yaml, and name it in the first line of that file:
    `# yaml-language-server: $schema=promptiter.schema.json`. `promptiter init` does both.
    """
    from promptiter.config.schema import read_schema

    write_text(read_schema().decode(), output)
