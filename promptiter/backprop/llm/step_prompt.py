"""The prompt of LLMBackwarder: one step, what went wrong after it, and the surfaces and predecessors to blame."""

from __future__ import annotations

from collections.abc import Mapping

from promptiter.backprop.llm.prompts import (
    BACKWARD,
    DATA_RULE,
    EXPECTED,
    GRADES,
    MAX_PROMPT_TOKENS,
    ROUTES,
    TO_A_SURFACE,
)
from promptiter.backprop.llm.rendering import (
    build_optional_section,
    collect_findings,
    collect_literals,
    collect_wrong_values,
    describe_absent_owners,
    describe_findings,
    describe_routes,
    is_suspect,
    quote_numbered,
    quote_optional,
    quote_step,
    quote_surface,
    render_call,
    render_result,
)
from promptiter.backprop.llm.truncation import PromptSection, Quote, compose, compute_room
from promptiter.llm.messages import Message
from promptiter.stages.contracts import BackwardRequest
from traces import Step

MOST_PREDECESSORS = 64
"""Maximum number of predecessors shown."""

_RULES = BACKWARD.format(to_a_surface=TO_A_SURFACE, grades=GRADES, data_rule=DATA_RULE)


def alias_surfaces(request: BackwardRequest) -> dict[str, str]:
    """The blamable surfaces by their aliases in the prompt and in the answer."""
    return {f"S{number}": name for number, name in enumerate(sorted(set(request.blamable)), 1)}


def alias_predecessors(request: BackwardRequest) -> dict[str, Step]:
    """The predecessors by alias. If there are too many, those that failed or gave a wrong value are preferred."""
    steps = sorted({step.id: step for step in request.predecessors}.values(), key=lambda step: (len(step.id), step.id))
    wrong = collect_wrong_values(collect_findings(request.incoming))
    named = [(f"P{number}", step) for number, step in enumerate(steps, 1)]
    if len(named) > MOST_PREDECESSORS:
        named = sorted(named, key=lambda pair: not is_suspect(pair[1], wrong))[:MOST_PREDECESSORS]
    return dict(named)


def _describe_unread(step: Step, predecessors: Mapping[str, Step]) -> str:
    unread = [alias for alias, before in predecessors.items() if before.id in step.unread]
    return f"; it was run after {', '.join(unread)}, but did not read that output" if unread else ""


def _describe_routes(request: BackwardRequest, predecessors: Mapping[str, Step]) -> str:
    names = {request.step.id: "This step", **{step.id: alias for alias, step in predecessors.items()}}
    lines = (
        *describe_routes(request.missed_routes, names=names),
        *describe_absent_owners(request.absent_owners),
    )
    return "\n".join(lines)


def render_backward(request: BackwardRequest, *, limit: int = MAX_PROMPT_TOKENS) -> tuple[Message, ...]:
    """Render the prompt that asks which surface or predecessor of a step is to blame."""
    step, findings = request.step, collect_findings(request.incoming)
    packets = sorted(request.incoming, key=lambda packet: (packet.severity, packet.source, packet.text))
    reports = list(dict.fromkeys(f"{packet.severity}, {packet.category}: {packet.text}" for packet in packets))
    reasons = [reason for reason in dict.fromkeys(request.reasons) if reason not in "\n".join(reports)]
    shown = "\n".join((*reports, *reasons))
    unshown = [each for each in describe_findings(findings) if each not in shown]
    aliases = {name: alias for alias, name in alias_surfaces(request).items()}
    surfaces = sorted(request.surfaces, key=lambda surface: (surface.id not in aliases, surface.id))
    predecessors = alias_predecessors(request)
    sections = [
        PromptSection(title="# What went wrong", quotes=quote_numbered("report", reports), weight=6),
        *build_optional_section("# Why the metrics failed", quote_numbered("reason", reasons), weight=5),
        *build_optional_section("# What the metrics found", quote_optional("findings", "\n".join(unshown)), weight=3),
        *build_optional_section("# What the user said", quote_optional("user", request.input), weight=3),
        *build_optional_section(EXPECTED, quote_optional("expected", request.expected), weight=4),
        PromptSection(title="# The step", quotes=quote_step(step), weight=10),
        *build_optional_section(
            "# Its tool calls", quote_numbered("call", map(render_call, step.tool_calls)), weight=5
        ),
        PromptSection(
            title="# Its surfaces" + ("" if aliases else ": none may be blamed"),
            quotes=tuple(quote_surface(surface, name=aliases.get(surface.id, "fixed")) for surface in surfaces),
            weight=6,
        ),
        PromptSection(
            title=f"# Its predecessors{_describe_unread(step, predecessors)}"
            if predecessors
            else "# Its predecessors: none may be blamed",
            quotes=tuple(Quote(alias, render_result(before)) for alias, before in predecessors.items()),
            weight=6,
        ),
        *build_optional_section(ROUTES, quote_optional("routes", _describe_routes(request, predecessors)), weight=4),
    ]
    room = compute_room(_RULES, limit=limit)
    content = compose(sections, room, around=collect_literals(findings, [request.expected]))
    return Message("system", _RULES), Message("user", content)
