"""The prompt of LLMBackwarder: one step, what went wrong after it, and the surfaces and predecessors to blame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache

from promptiter.backprop.llm.blame_rules import (
    BACKWARD,
    BEFORE,
    FIXED,
    GRADES,
    HERE,
    MISSING_TOOL,
    NOT_HERE,
    OTHER_BRANCH,
)
from promptiter.backprop.llm.prompts import DATA_RULE, MAX_PROMPT_TOKENS, ROUTES
from promptiter.backprop.llm.rendering import (
    EARLIER,
    FIXED_NAME,
    USER,
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
    CitedReports,
    Report,
    alias_reports,
    build_criteria_section,
    cite_reports,
    collect_criteria,
    collect_findings,
    collect_reports,
)
from promptiter.backprop.llm.truncation import PromptSection, Quote, compose, compute_room
from promptiter.grouping import ById
from promptiter.llm.messages import Message
from promptiter.stages.contracts import BackwardRequest
from promptiter.stages.losses import Loss
from traces import Step

MOST_PREDECESSORS = 64
"""Maximum number of predecessors shown."""


@cache
def _build_rules(
    *, has_surfaces: bool, has_predecessors: bool, has_tools: bool, has_fixed: bool, has_routes: bool
) -> str:
    """The rules of the prompt, without those about what the step does not have."""
    here = HERE if has_surfaces else {**dict.fromkeys(HERE, ""), "if_lost_here": NOT_HERE}
    before = BEFORE if has_predecessors else dict.fromkeys(BEFORE, "")
    return BACKWARD.format(
        here_or_before=before["here_or_before"] if has_surfaces else " before this step",
        surfaces=here["surfaces"].format(fixed=FIXED if has_fixed else ""),
        predecessors=before["predecessors"],
        if_lost_here=here["if_lost_here"],
        missing_there=before["missing_there"].format(routes=OTHER_BRANCH if has_routes else ""),
        missing_tool=MISSING_TOOL if has_tools and has_surfaces else "",
        to_a_surface=here["to_a_surface"],
        to_a_predecessor=before["to_a_predecessor"],
        grades=GRADES.format(confidence=here["confidence"]),
        data_rule=DATA_RULE,
        gradients=here["gradients"],
        packets=before["packets"],
    )


@dataclass(frozen=True, slots=True)
class ShownReports:
    """What went wrong, as far as a step is asked about it: by alias, and how a prompt shows it."""

    by_alias: Mapping[str, Report]
    alias_of: Mapping[str, str]
    sections: tuple[PromptSection, ...]
    literals: tuple[str, ...]
    _cited: dict[tuple[str, ...], CitedReports] = field(default_factory=dict, compare=False)

    def cite(self, cited: tuple[str, ...]) -> CitedReports:
        """The reports that an entry of an answer cites; all of them, if it cites none. Most entries cite the same."""
        known = self._cited.get(cited)
        if known is None:
            found = cite_reports(cited, self.by_alias, otherwise=tuple(self.by_alias.values()))
            known = self._cited[cited] = CitedReports.of(found)
        return known

    @classmethod
    def of(
        cls, reports: Iterable[Report], losses: Iterable[Loss], said: str, earlier: str, expected: str | None
    ) -> ShownReports:
        by_alias = alias_reports(reports)
        alias_of = {report.text: alias for alias, report in by_alias.items()}
        quotes = (
            *quote_optional(EARLIER, earlier),
            *quote_optional("user", said),
            *(Quote(alias, report.text) for alias, report in by_alias.items()),
            *quote_optional("expected", expected),
        )
        sections = (
            PromptSection(title="# The run, and what is wrong with its result", quotes=quotes, weight=12),
            *build_criteria_section(collect_criteria(loss for loss in losses if loss.report in alias_of)),
        )
        return cls(by_alias, alias_of, sections, collect_literals(collect_findings(by_alias.values()), [expected]))


@lru_cache(maxsize=256)
def _show_known_reports(
    losses: ById[tuple[Loss, ...]], named: frozenset[str] | None, said: str, earlier: str, expected: str | None
) -> ShownReports | None:
    """The reports of a run that packets are about, or all of them; None if there are none. Most steps share them."""
    reports = [each for each in collect_reports(losses.value) if named is None or each.text in named]
    return ShownReports.of(reports, losses.value, said, earlier, expected) if reports else None


def show_reports(request: BackwardRequest) -> ShownReports:
    """What went wrong, as far as the incoming packets are about it."""
    reasons = [packet.reasons for packet in request.incoming]
    named = frozenset[str]().union(*reasons) if all(reasons) else None
    told = (request.input, request.earlier, request.expected)
    if known := _show_known_reports(ById(request.losses), named, *told):
        return known
    own = (
        Report(text=packet.text, severity=packet.severity, category=packet.category, findings=packet.findings)
        for packet in sorted(request.incoming, key=lambda packet: packet.text)
    )
    return ShownReports.of(own, request.losses, *told)


def alias_surfaces(request: BackwardRequest) -> dict[str, str]:
    """The blamable surfaces by their aliases in the prompt and in the answer."""
    return {f"S{number}": name for number, name in enumerate(sorted(set(request.blamable)), 1)}


def alias_predecessors(request: BackwardRequest) -> dict[str, Step]:
    """The predecessors by alias. If there are too many, those that failed or gave a wrong value are preferred."""
    by_id = {step.id: step for step in request.predecessors}
    ids = sorted(by_id, key=lambda step_id: (len(step_id), step_id)) if len(by_id) > 1 else by_id
    named = {f"P{number}": by_id[step_id] for number, step_id in enumerate(ids, 1)}
    if len(named) > MOST_PREDECESSORS:
        wrong = collect_wrong_values(collect_findings(show_reports(request).by_alias.values()))
        named = dict(sorted(named.items(), key=lambda pair: not is_suspect(pair[1], wrong))[:MOST_PREDECESSORS])
    return named


class StepPrompt:
    """The prompt about one step, with the names that the answer may use."""

    def __init__(self, request: BackwardRequest) -> None:
        self.request = request
        self.shown = show_reports(request)
        self.reports = self.shown.by_alias
        self.surfaces = alias_surfaces(request)
        self.predecessors = alias_predecessors(request)

    def render(self, *, limit: int = MAX_PROMPT_TOKENS) -> tuple[Message, ...]:
        """Render the prompt that asks which surface or predecessor of the step is to blame."""
        request, step, predecessors = self.request, self.request.step, self.predecessors
        known = {alias: render_snapshot(each.output) for alias, each in predecessors.items()}
        known[USER] = request.input
        sections = list(self.shown.sections)
        if later := self._quote_packets():
            sections.append(
                PromptSection(title="# What the steps that read its output say", quotes=tuple(later), weight=6)
            )
        sections.append(build_step_section(step, known))
        if step.tool_calls:
            calls = quote_numbered("call", map(render_call, step.tool_calls))
            sections.append(PromptSection(title="# Its tool calls", quotes=calls, weight=5))
        surfaces = self._build_surface_section()
        if surfaces.quotes:
            sections.append(surfaces)
        if predecessors:
            sections.append(_build_predecessor_section(request, predecessors, known))
        has_routes = bool(request.missed_routes or request.absent_owners)
        if has_routes and (routes := _describe_routes(request, predecessors)):
            sections.append(PromptSection(title=ROUTES, quotes=(Quote("routes", routes),), weight=4))
        rules = _build_rules(
            has_surfaces=bool(self.surfaces),
            has_predecessors=bool(predecessors),
            has_tools=bool(step.tool_calls) or "tool" in [surface.type for surface in request.surfaces],
            has_fixed=FIXED_NAME in [quote.name for quote in surfaces.quotes],
            has_routes=has_routes,
        )
        content = compose(sections, compute_room(rules, limit=limit), around=self.shown.literals)
        return Message("system", rules), Message("user", content)

    def _build_surface_section(self) -> PromptSection:
        aliases = {name: alias for alias, name in self.surfaces.items()}
        surfaces = {surface.id: surface for surface in self.request.surfaces}
        order = sorted(surfaces, key=lambda name: (name not in aliases, name)) if len(surfaces) > 1 else surfaces
        quotes = [
            quote_surface(
                surfaces[name], name=aliases.get(name, FIXED_NAME), call_seen=self.request.calls_seen.get(name)
            )
            for name in order
            if name in aliases or is_worth_showing(surfaces[name])
        ]
        title = "# Its surfaces" if aliases else "# Its surfaces: none may be blamed"
        return PromptSection(title=title, quotes=tuple(quotes), weight=6)

    def _quote_packets(self) -> list[Quote]:
        """Quote what later steps say of this one's output, with their nodes and the findings concerned."""
        aliases, readers = self.shown.alias_of, self.request.readers
        cited: dict[tuple[str, str], dict[str, None]] = {}
        for packet in self.request.incoming:
            if packet.source and packet.text not in aliases:
                about = cited.setdefault((packet.source, packet.text), {})
                for reason in packet.reasons:
                    if reason in aliases:
                        about[aliases[reason]] = None
        quotes = []
        for source, text in sorted(cited):
            name, _ = name_node(readers.get(source, ""))
            about = cited[source, text]
            node = name[0] if name else "a later step"
            quotes.append(Quote(f"from {node} about {', '.join(about)}" if about else f"from {node}", text))
        return quotes


def render_backward(request: BackwardRequest, *, limit: int = MAX_PROMPT_TOKENS) -> tuple[Message, ...]:
    """Render the prompt about one step."""
    return StepPrompt(request).render(limit=limit)


def _build_predecessor_section(
    request: BackwardRequest, predecessors: Mapping[str, Step], outputs: Mapping[str, str]
) -> PromptSection:
    title = "# Its predecessors"
    if request.step.edges and (not_read := request.step.unread):
        unread = [alias for alias, before in predecessors.items() if before.id in not_read]
        title += f"; it was run after {', '.join(unread)}, but did not read that output" if unread else ""
    if len(request.predecessors) > len(predecessors):
        left_out = len({step.id for step in request.predecessors}) - len(predecessors)
        title += f"; {left_out:,} more are not shown and cannot be blamed" if left_out else ""
    quotes = [Quote(alias, _render_result(before, outputs[alias])) for alias, before in predecessors.items()]
    return PromptSection(title=title, quotes=tuple(quotes), weight=6)


def _render_result(step: Step, output: str) -> str:
    """Render the node and the output of a predecessor."""
    failed = f", failed: {step.error}" if step.error is not None else ""
    return f"node {step.node_id}{failed}\n\n{output}"


def _describe_routes(request: BackwardRequest, predecessors: Mapping[str, Step]) -> str:
    if not request.missed_routes and not request.absent_owners:
        return ""
    names = {request.step.id: "This step", **{step.id: alias for alias, step in predecessors.items()}}
    lines = (
        *describe_routes(request.missed_routes, names=names),
        *describe_absent_owners(request.absent_owners),
    )
    return "\n".join(lines)
