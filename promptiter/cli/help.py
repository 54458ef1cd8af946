"""Help texts for 80 columns: plain text, without Python types."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

_TYPE = re.compile(r"(?m)^(  [A-Z_|]+)( <[\w \[\]]+>)")
_REQUIRED = re.compile(r"\{([A-Z_|]+)\}")


class PlainCommand(TyperCommand):
    """A command whose help shows `CONFIG`, not `CONFIG <path>` or `{CONFIG}`."""

    def get_help(self, ctx: Any) -> str:
        usage, line, rest = super().get_help(ctx).partition("\n\n")
        return _REQUIRED.sub(r"\1", usage) + line + _TYPE.sub(lambda match: match[1] + " " * len(match[2]), rest)
