"""Blame for tool calls: on the step that made the wrong call or should have made one, or on what misled it.

An argument that the step was never given is followed back like any missing value; a wrong one that it was handed is
followed to where it was introduced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.blame_results import Blame, Blames, named
from promptiter.offline.attribution.expected_values import Atom, leaves_of
from promptiter.offline.attribution.trace_context import Scene
from promptiter.offline.attribution.traversal import choose, follow_missing, follow_unexpected
from promptiter.offline.attribution.value_search import from_plain, json_text, plain_words
from promptiter.stages.losses import Severity
from traces import Step, ToolCall
from traces.model import Json

SURE, LIKELY, UNSURE = 0.9, 0.7, 0.3


def blame_tools(findings: Iterable[Finding], blames: Blames, *, last: str, severity: Severity) -> None:
    """Blame for findings about tool calls; `last` is the step where their loss stands."""
    judging = _Judging(blames, last=last, severity=severity)
    for finding in sorted(findings, key=lambda finding: finding.kind == "unexpected"):
        judging.judge(finding)


class _Judging:
    """Finds the steps behind wrong tool calls, one finding after the other: missing calls before needless ones."""

    def __init__(self, blames: Blames, *, last: str, severity: Severity) -> None:
        self.blames = blames
        self.scene = blames.scene
        self.last = last
        self.severity = severity
        self.calls = [(step, call) for step in self.scene.trace.steps for call in step.tool_calls]
        self.lacking: set[str] = set()

    def judge(self, finding: Finding) -> None:
        found = re.match(r"tool call (\d+)", finding.where)
        number = int(found[1]) if found else -1
        if not 0 <= number < len(self.calls):
            self._judge_missing(finding)
            return
        caller, call = self.calls[number]
        if finding.predicate == "tool_call":
            if caller.id not in self.lacking:  # else it was called instead of the one that is missing
                lead = "This step called a tool that was not wanted"
                self._blame_call(caller, finding, lead=lead, what=_told(finding.actual), tool=call.name)
        elif finding.predicate == "tool_name":
            tool = _name(finding.expected)
            lead = "This step called one tool instead of another"
            self._blame_call(caller, finding, lead=lead, what=f"{call.name} instead of {tool}", tool=tool)
        elif finding.predicate == "tool_order":
            lead = "This step called tools in the wrong order"
            what = f"{call.name} came as call {number} and was expected as call {_position(finding.expected)}"
            self._blame_call(caller, finding, lead=lead, what=what)
        else:
            self._judge_arguments(finding, caller, call=call)

    def _judge_missing(self, finding: Finding) -> None:
        tool = _name(finding.expected)
        step = _should_call(self.scene, tool) or self.scene.steps[self.last]
        self.lacking.add(step.id)
        arguments = finding.expected.get("arguments") if isinstance(finding.expected, Mapping) else None
        if not self._was_misled(step, finding, arguments=arguments):
            lead = "This step should have called a tool and did not"
            self._blame_call(step, finding, lead=lead, what=_told(finding.expected), tool=tool)

    def _judge_arguments(self, finding: Finding, caller: Step, *, call: ToolCall) -> None:
        is_result = ", result " in finding.where
        if not is_result and self._was_misled(caller, finding, arguments=finding.expected):
            return
        wanted, came = json_text(finding.expected) or "nothing", json_text(finding.actual) or "nothing"
        place = finding.where.partition(", ")[2]
        blame = Blame(
            step_id=caller.id,
            lead="This step called a tool with wrong arguments",
            what=f"{call.name}, {place}: expected {wanted[:120]!r}, got {came[:120]!r}",
            category="wrong_arguments",
            confidence=UNSURE if is_result else SURE,
            severity=self.severity,
            finding=finding,
            tool=call.name,
        )
        self.blames.add(blame)

    def _blame_call(self, step: Step, finding: Finding, *, lead: str, what: str, tool: str = "") -> None:
        blame = Blame(
            step_id=step.id,
            lead=lead,
            what=what,
            category="wrong_tool",
            confidence=SURE,
            severity=self.severity,
            finding=finding,
            tool=tool,
        )
        self.blames.add(blame)

    def _was_misled(self, step: Step, finding: Finding, *, arguments: Json) -> bool:
        """Blame whoever lost an argument before the step, or handed it a wrong one; False if the step did it itself."""
        scene = self.scene
        for atom in _arguments(finding, arguments):
            walk = follow_missing(scene, atom, starts=[step.id], is_surely_lacking=True)
            lead = "This step was given these values and its output lacks them, though a later tool call needs them"
            if not walk.found and atom.counterpart is not None:
                atom = replace(atom, kind="unexpected", value=atom.counterpart)
                walk = follow_unexpected(scene, atom.value, starts=scene.texts.handed_by(step, atom.value))
                lead = "These values stand in this step's output and in nothing that it was given, and a tool got them"
            chosen = [] if step.id in walk.found else choose(scene, atom, walk=walk)
            for step_id in chosen:
                self.blames.send(walk, atom, severity=self.severity)
                blame = Blame(
                    step_id=step_id,
                    lead=lead,
                    what=named(atom.value.text, scene.field(atom)),
                    category="response",
                    confidence=LIKELY / len(chosen),
                    severity=self.severity,
                    finding=atom.finding,
                )
                self.blames.add(blame)
            if chosen:
                return True
        return False


def _arguments(finding: Finding, arguments: Json) -> Iterator[Atom]:
    """The values that a call should have had, with what a single wrong argument was instead."""
    place = finding.where.rpartition(".")[2] if "arguments" in finding.where else ""
    instead = finding.actual if finding.predicate == "tool_arguments" else None
    for name, leaf in leaves_of(arguments, plain_words(place)):
        value = from_plain(leaf)
        if isinstance(leaf, bool) or len(value.folded) < 2:
            continue
        told = replace(finding, kind="missing", expected=leaf, actual=None)
        is_single = isinstance(instead, str | int | float) and not isinstance(instead, bool)
        counterpart = from_plain(instead) if is_single else None
        yield Atom(kind="missing", value=value, finding=told, field=name, counterpart=counterpart)


def _should_call(scene: Scene, tool: str) -> Step | None:
    """The step that should have called a tool: of the node that does in passing runs, that has it, or has any."""
    callers = {
        step.node_id
        for peer in scene.request.peers
        if peer.passed
        for step in peer.trace.steps
        if any(call.name == tool for call in step.tool_calls)
    }
    steps = {step.node_id: step for step in scene.trace.steps}.values()  # the last visit of each node
    by_peers = (step for step in steps if step.node_id in callers)
    by_name = (step for step in steps if scene.has_tool(step.node_id, tool))
    by_tools = (step for step in steps if scene.has_tool(step.node_id) or step.tool_calls)
    return next(by_peers, None) or next(by_name, None) or next(by_tools, None)


def _name(call: Json) -> str:
    return str(call.get("name", "")) if isinstance(call, Mapping) else str(call or "")


def _told(call: Json) -> str:
    arguments = call.get("arguments") if isinstance(call, Mapping) else None
    return f"{_name(call)}({json_text(arguments)[:120]})"


def _position(expected: Json) -> Json:
    return expected.get("position") if isinstance(expected, Mapping) else expected
