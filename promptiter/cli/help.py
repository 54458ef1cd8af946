"""Help texts for 80 columns: plain text, without Python types. Usage errors in the same words as others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from promptiter.terminal import show_controls
from promptiter.wording import shorten

_USAGE_ERROR: Any = typer.BadParameter.__base__  # of click, or of typer's copy of it
_TYPE = re.compile(r"(?m)^(  [A-Z_|.]+)( <[\w \[\]]+>)")
_OF_PYDANTIC = "Value error, "
"""What pydantic, which typer checks options with, puts before a message."""
_SHOULD_BE = "Input should be "
_REQUIRED = re.compile(r"\{([A-Z_|.]+)\}(?:\.\.\.)?")


class PlainCommand(TyperCommand):
    """A command whose help shows `CONFIG`, not `CONFIG <path>` or `{CONFIG}`.

    `--review` may have a value, which typer's options either always or never have: without one it is `ask`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(parameter.name == "review" for parameter in self.params):
            args = list(_complete_review(args))
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def get_help(self, ctx: Any) -> str:
        usage, line, rest = super().get_help(ctx).partition("\n\n")
        return _REQUIRED.sub(r"\1", usage) + line + _TYPE.sub(lambda match: match[1] + " " * len(match[2]), rest)


class FatalUsageCommand(PlainCommand):
    """A command whose usage errors have the exit code 1, as other fatal errors: its code 2 means something else."""

    def make_context(self, *given: Any, **options: Any) -> Any:
        try:
            return super().make_context(*given, **options)
        except _USAGE_ERROR as error:
            error.exit_code = 1
            raise


def _complete_review(args: Sequence[str]) -> Iterator[str]:
    for argument, following in zip_longest(args, args[1:]):
        if argument == "--no-review":
            yield "--review=no"
        else:
            yield "--review=ask" if argument == "--review" and following not in ("ask", "file", "no") else argument


class SafeGroup(TyperGroup):
    """Commands whose usage errors show the control characters of an argument, and nothing of how it was checked."""

    def make_context(self, *given: Any, **options: Any) -> Any:
        with _clean_usage_errors():
            return super().make_context(*given, **options)

    def invoke(self, ctx: Any) -> Any:
        with _clean_usage_errors():
            return super().invoke(ctx)


@contextmanager
def _clean_usage_errors() -> Iterator[None]:
    try:
        yield
    except _USAGE_ERROR as error:
        error.message = show_controls(_add_value(error.message.removeprefix(_OF_PYDANTIC), error.__cause__))
        raise


def _add_value(message: str, cause: BaseException | None) -> str:
    """`must be less than or equal to 65535, not '99999'` for a message of pydantic, which leaves out the value."""
    from pydantic import ValidationError

    if not message.startswith(_SHOULD_BE) or not isinstance(cause, ValidationError):
        return message
    given = cause.errors(include_url=False)[0]["input"]
    expected, _, _ = message.removeprefix(_SHOULD_BE).partition(", unable to parse")
    return f"must be {expected}, not {shorten(given)}"
