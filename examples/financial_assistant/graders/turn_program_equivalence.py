"""A grader: whether the assistant computed with its tools what the case says, in the right order."""

import re
from typing import Any


def turn_program_equivalence(ctx: Any) -> tuple[float, str]:
    """Whether the arithmetic tools were called as in `turn_program`, such as subtract(206.5, 181.0)."""
    expected = re.fullmatch(r"(\w+)\((.+), (.+)\)", ctx.turn_config.get("turn_program", ""))
    if expected is None:
        return 1.0, "nothing to compute"
    wanted = expected[1], *(float(each) for each in expected.groups()[1:])
    calls = [call for call in ctx.tool_invocations if call.name in ("subtract", "divide")]
    if not calls:
        return 0.0, f"{wanted[0]} was not called; the answer was computed without a tool"
    found = [(call.name, float(call.args["a"]), float(call.args["b"])) for call in calls]
    return float(wanted in found), f"expected {wanted}, called {found}"
