"""Blame for tool calls: on the step that made the wrong call or should have made one, or on the step that misled it.

An argument that the step never received is followed back like any missing value. A wrong argument that it received is
followed to the step that introduced it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from promptiter.backprop.step_text import json_text
from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.blame_results import Blame, BlameCollector, describe_value
from promptiter.offline.attribution.expected_values import Mismatch, named_leaves
from promptiter.offline.attribution.trace_context import TraceContext
from promptiter.offline.attribution.traversal import choose_losing_steps, follow_missing, follow_unexpected
from promptiter.offline.attribution.value_search import normalize_name, read_value
from promptiter.stages.losses import Category, Severity
from promptiter.stages.routes import read_tool_name
from traces import Step, ToolCall
from traces.model import Json

SURE, LIKELY, UNSURE = 0.9, 0.7, 0.3


def blame_tools(findings: Iterable[Finding], collector: BlameCollector, *, last: str, severity: Severity) -> None:
    """Blame steps for findings about tool calls whose loss is on the step `last`."""
    blaming = _ToolBlame(collector, last=last, severity=severity)
    for finding in sorted(findings, key=lambda finding: finding.kind == "unexpected"):
        blaming.blame(finding)


class _ToolBlame:
    """Finds the steps behind wrong tool calls, finding by finding: missing calls before unexpected ones."""

    def __init__(self, collector: BlameCollector, *, last: str, severity: Severity) -> None:
        self.collector = collector
        self.context = collector.context
        self.last = last
        self.severity = severity
        self.calls = [(step, call) for step in self.context.trace.steps for call in step.tool_calls]
        self.lacking: set[str] = set()

    def blame(self, finding: Finding) -> None:
        found = re.match(r"tool call (\d+)", finding.where)
        number = int(found[1]) if found else -1
        if not 0 <= number < len(self.calls):
            self._blame_missing_call(finding)
            return
        caller, call = self.calls[number]
        if finding.predicate == "tool_call":
            if caller.id not in self.lacking:  # else it was called instead of the one that is missing
                reason = "This step made an unexpected tool call"
                self._add(caller, finding, reason=reason, subject=describe_call(finding.actual), tool=call.name)
        elif finding.predicate == "tool_name":
            tool = read_tool_name(finding.expected)
            reason = "This step called the wrong tool"
            self._add(caller, finding, reason=reason, subject=f"{call.name} instead of {tool}", tool=tool)
        elif finding.predicate == "tool_order":
            reason = "This step called tools in the wrong order"
            position = finding.expected.get("position") if isinstance(finding.expected, Mapping) else finding.expected
            subject = f"{call.name} was call {number} and should have been call {position}"
            self._add(caller, finding, reason=reason, subject=subject)
        else:
            self._blame_arguments(finding, caller, call=call)

    def _blame_missing_call(self, finding: Finding) -> None:
        tool = read_tool_name(finding.expected)
        step = _find_expected_caller(self.context, tool) or self.context.steps[self.last]
        self.lacking.add(step.id)
        arguments = finding.expected.get("arguments") if isinstance(finding.expected, Mapping) else None
        if not self._blame_source_of(arguments, finding, step):
            reason = "This step should have called a tool and did not"
            self._add(step, finding, reason=reason, subject=describe_call(finding.expected), tool=tool)

    def _blame_arguments(self, finding: Finding, caller: Step, *, call: ToolCall) -> None:
        is_result = ", result " in finding.where
        if not is_result and self._blame_source_of(finding.expected, finding, caller):
            return
        wanted, actual = json_text(finding.expected) or "nothing", json_text(finding.actual) or "nothing"
        place = finding.where.partition(", ")[2]
        reason = "This step called a tool with wrong arguments"
        subject = f"{call.name}, {place}: expected {wanted[:120]!r}, got {actual[:120]!r}"
        confidence = UNSURE if is_result else SURE
        self._add(
            caller,
            finding,
            reason=reason,
            subject=subject,
            tool=call.name,
            category="wrong_arguments",
            confidence=confidence,
        )

    def _blame_source_of(self, arguments: Json, finding: Finding, step: Step) -> bool:
        return blame_source_of(arguments, finding, self.collector, step=step, severity=self.severity)

    def _add(
        self,
        step: Step,
        finding: Finding,
        *,
        reason: str,
        subject: str,
        tool: str = "",
        category: Category = "wrong_tool",
        confidence: float = SURE,
    ) -> None:
        self.collector.add(
            Blame(
                step_id=step.id,
                reason=reason,
                subject=subject,
                category=category,
                confidence=confidence,
                severity=self.severity,
                finding=finding,
                tool=tool,
            )
        )


def blame_source_of(
    arguments: Json, finding: Finding, collector: BlameCollector, *, step: Step, severity: Severity
) -> bool:
    """Blame the steps that lost an argument before this one, or passed it a wrong one. False if there are none."""
    context = collector.context
    for mismatch in _read_arguments(arguments, finding):
        walk = follow_missing(context, mismatch, starts=[step.id], is_surely_lacking=True)
        reason = "This step received values that a later tool call needs, and its output lacks them"
        if not walk.origins and mismatch.counterpart is not None:
            mismatch = replace(mismatch, kind="unexpected", value=mismatch.counterpart)
            starts = context.texts.sources_with(mismatch.value, step)
            walk = follow_unexpected(context, mismatch.value, starts=starts)
            reason = "This step's output has values that it did not receive, and a later tool call used them"
        chosen = [] if step.id in walk.origins else choose_losing_steps(context, mismatch, walk=walk)
        for step_id in chosen:
            collector.add_packets(walk, mismatch, severity=severity)
            collector.add(
                Blame(
                    step_id=step_id,
                    reason=reason,
                    subject=describe_value(mismatch.value.text, context.field_name(mismatch)),
                    category="response",
                    confidence=LIKELY / len(chosen),
                    severity=severity,
                    finding=mismatch.finding,
                )
            )
        if chosen:
            return True
    return False


def _read_arguments(arguments: Json, finding: Finding) -> Iterator[Mismatch]:
    """The values that a call should have had, each with its counterpart if a single argument is wrong."""
    place = finding.where.rpartition(".")[2] if "arguments" in finding.where else ""
    instead = finding.actual if finding.predicate == "tool_arguments" else None
    for name, leaf in named_leaves(arguments, normalize_name(place)):
        value = read_value(leaf)
        if isinstance(leaf, bool) or len(value.normalized) < 2:
            continue
        missing = replace(finding, kind="missing", expected=leaf, actual=None)
        is_single = isinstance(instead, str | int | float) and not isinstance(instead, bool)
        counterpart = read_value(instead) if is_single else None
        yield Mismatch(kind="missing", value=value, finding=missing, field=name, counterpart=counterpart)


def find_usual_callers(context: TraceContext, tool: str) -> frozenset[str]:
    """The nodes that call a tool in passing runs."""
    return frozenset(
        step.node_id
        for peer in context.request.peers
        if peer.passed
        for step in peer.trace.steps
        if any(call.name == tool for call in step.tool_calls)
    )


def _find_expected_caller(context: TraceContext, tool: str) -> Step | None:
    """The step that should have called a tool: of the node that does in passing runs, that has it, or has any tool."""
    callers = find_usual_callers(context, tool)
    steps = {step.node_id: step for step in context.trace.steps}.values()  # the last visit of each node
    by_peers = (step for step in steps if step.node_id in callers)
    by_name = (step for step in steps if context.has_tool(step.node_id, tool))
    by_tools = (step for step in steps if context.has_tool(step.node_id) or step.tool_calls)
    return next(by_peers, None) or next(by_name, None) or next(by_tools, None)


def describe_call(call: Json) -> str:
    arguments = call.get("arguments") if isinstance(call, Mapping) else None
    return f"{read_tool_name(call)}({json_text(arguments)[:120]})"
