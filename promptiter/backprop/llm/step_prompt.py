"""The prompt of LLMBackwarder: one step, what went wrong after it, and the surfaces and predecessors to blame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from promptiter.backprop.llm.blame_rules import BACKWARD, BEFORE, GRADES, MISSING_TOOL, TO_A_SURFACE
from promptiter.backprop.llm.prompts import DATA_RULE, MAX_PROMPT_TOKENS, ROUTES
from promptiter.backprop.llm.rendering import (
    USER,
    build_optional_section,
    build_step_section,
    collect_literals,
    collect_wrong_values,
    describe_absent_owners,
    describe_routes,
    is_suspect,
    is_worth_showing,
    name_node,
    quote_numbered,
    quote_optional,
    quote_surface,
    render_call,
    render_snapshot,
)
from promptiter.backprop.llm.reports import (
    Report,
    alias_reports,
    build_criteria_section,
    collect_criteria,
    collect_findings,
    collect_reports,
)
from promptiter.backprop.llm.truncation import PromptSection, Quote, compose, compute_room
from promptiter.grouping import group_by
from promptiter.llm.messages import Message
from promptiter.stages.contracts import BackwardRequest
from traces import Step

MOST_PREDECESSORS = 64
"""Maximum number of predecessors shown."""


@cache
def _build_rules(*, has_predecessors: bool, has_tools: bool) -> str:
    """The rules of the prompt, without those about what the step does not have."""
    return BACKWARD.format(
        to_a_surface=TO_A_SURFACE,
        grades=GRADES,
        data_rule=DATA_RULE,
        missing_tool=MISSING_TOOL if has_tools else "",
        **(BEFORE if has_predecessors else dict.fromkeys(BEFORE, "")),
    )


def alias_surfaces(request: BackwardRequest) -> dict[str, str]:
    """The blamable surfaces by their aliases in the prompt and in the answer."""
    return {f"S{number}": name for number, name in enumerate(sorted(set(request.blamable)), 1)}


def alias_step_reports(request: BackwardRequest) -> dict[str, Report]:
    """What went wrong, as far as the incoming packets are about it, by alias."""
    known = collect_reports(request.losses)
    named = {reason for packet in request.incoming for reason in packet.reasons}
    is_open = not all(packet.reasons for packet in request.incoming)
    if reports := [report for report in known if is_open or report.text in named]:
        return alias_reports(reports)
    return alias_reports(
        Report(text=packet.text, severity=packet.severity, category=packet.category, findings=packet.findings)
        for packet in sorted(request.incoming, key=lambda packet: packet.text)
    )


def alias_predecessors(request: BackwardRequest) -> dict[str, Step]:
    """The predecessors by alias. If there are too many, those that failed or gave a wrong value are preferred."""
    steps = sorted({step.id: step for step in request.predecessors}.values(), key=lambda step: (len(step.id), step.id))
    named = [(f"P{number}", step) for number, step in enumerate(steps, 1)]
    if len(named) > MOST_PREDECESSORS:
        wrong = collect_wrong_values(collect_findings(alias_step_reports(request).values()))
        named = sorted(named, key=lambda pair: not is_suspect(pair[1], wrong))[:MOST_PREDECESSORS]
    return dict(named)


def render_backward(request: BackwardRequest, *, limit: int = MAX_PROMPT_TOKENS) -> tuple[Message, ...]:
    """Render the prompt that asks which surface or predecessor of a step is to blame."""
    step, predecessors, reports = request.step, alias_predecessors(request), alias_step_reports(request)
    aliases = {name: alias for alias, name in alias_surfaces(request).items()}
    surfaces = sorted(request.surfaces, key=lambda surface: (surface.id not in aliases, surface.id))
    shown = [surface for surface in surfaces if surface.id in aliases or is_worth_showing(surface)]
    about = [loss for loss in request.losses if any(loss.report == report.text for report in reports.values())]
    known = {alias: render_snapshot(before.output) for alias, before in predecessors.items()} | {USER: request.input}
    sections = [
        PromptSection(
            title="# The run, and what is wrong with its result",
            quotes=(
                *quote_optional("user", request.input),
                *(Quote(alias, report.text) for alias, report in reports.items()),
                *quote_optional("expected", request.expected),
            ),
            weight=12,
        ),
        *build_criteria_section(collect_criteria(about)),
        *build_optional_section(
            "# What the steps that read its output say", tuple(_quote_packets(request, reports)), weight=6
        ),
        build_step_section(step, known),
        *build_optional_section(
            "# Its tool calls", quote_numbered("call", map(render_call, step.tool_calls)), weight=5
        ),
        PromptSection(
            title="# Its surfaces" + ("" if aliases else ": none may be blamed"),
            quotes=tuple(quote_surface(surface, name=aliases.get(surface.id, "fixed")) for surface in shown),
            weight=6,
        ),
        *_build_predecessor_sections(request, predecessors),
        *build_optional_section(ROUTES, quote_optional("routes", _describe_routes(request, predecessors)), weight=4),
    ]
    has_tools = bool(step.tool_calls) or any(surface.type == "tool" for surface in request.surfaces)
    rules = _build_rules(has_predecessors=bool(predecessors), has_tools=has_tools)
    around = collect_literals(collect_findings(reports.values()), [request.expected])
    content = compose(sections, compute_room(rules, limit=limit), around=around)
    return Message("system", rules), Message("user", content)


def _quote_packets(request: BackwardRequest, reports: Mapping[str, Report]) -> Iterator[Quote]:
    """Quote what later steps say of this one's output, with the node that they are of and the findings concerned."""
    aliases = {report.text: alias for alias, report in reports.items()}
    own = (each for each in request.incoming if each.source and each.text not in aliases)
    later = sorted(own, key=lambda packet: (packet.source, packet.text))
    for (source, text), same in group_by(later, lambda packet: (packet.source, packet.text)).items():
        node = request.readers.get(source, "")
        name, _ = name_node(node)
        cited = dict.fromkeys(aliases[reason] for packet in same for reason in packet.reasons if reason in aliases)
        about = f" about {', '.join(cited)}" if cited else ""
        yield Quote(f"from {' '.join(name) or 'a later step'}{about}", text)


def _build_predecessor_sections(request: BackwardRequest, predecessors: Mapping[str, Step]) -> Iterator[PromptSection]:
    if not predecessors:
        return
    unread = [alias for alias, before in predecessors.items() if before.id in request.step.unread]
    left_out = len({step.id for step in request.predecessors}) - len(predecessors)
    notes = [
        *([f"it was run after {', '.join(unread)}, but did not read that output"] if unread else []),
        *([f"{left_out:,} more are not shown and cannot be blamed"] if left_out else []),
    ]
    quotes = tuple(Quote(alias, _render_result(before)) for alias, before in predecessors.items())
    yield PromptSection(title="; ".join(["# Its predecessors", *notes]), quotes=quotes, weight=6)


def _render_result(step: Step) -> str:
    """Render the node and the output of a predecessor."""
    failed = f", failed: {step.error}" if step.error is not None else ""
    return f"node {step.node_id}{failed}\n\n{render_snapshot(step.output)}"


def _describe_routes(request: BackwardRequest, predecessors: Mapping[str, Step]) -> str:
    names = {request.step.id: "This step", **{step.id: alias for alias, step in predecessors.items()}}
    lines = (
        *describe_routes(request.missed_routes, names=names),
        *describe_absent_owners(request.absent_owners),
    )
    return "\n".join(lines)
