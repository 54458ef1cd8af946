"""EvidenceAttributor: blame from what the trace shows, without a model.

A loss is split into mismatches, and each value is followed back from the step that the loss is on:

- *lost*: a step received the value and its output lacks it. The gradient goes there.
- *introduced*: a step's output has a wrong value that nothing it received has. The gradient goes there.
- *absent*: neither input nor output has the value. Packets go to those steps that it read and that lack it too.
- *replaced*: the answer has another value for a name, such as `status: open`. It is followed as lost, or as introduced.
- absent everywhere: the node that introduces such values in passing runs (Ochiai); otherwise the step that lost the ids
  or numbers of the request before a function could look anything up by them; otherwise, with low confidence, knowledge
  that the step with the loss should have.
- a broken *format rule*: the step with the loss, or the step that it only copies.

Blame follows data: a step that only ran before another, and was not read by it, is not blamed for what the other lacks.
The exception is a step that chose a wrong route: it alone is blamed, since nothing after it is as it should be.

Each value is followed separately. Steps after the first loss of a value are unobserved, not innocent: they get no
gradient now. The search fixes what was found, runs the case again, and attributes again. A node that was visited
several times is blamed for the visit whose loss reaches the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.blame_results import Blame, BlameCollector, describe_value
from promptiter.offline.attribution.expected_values import LossAnalysis, Mismatch, analyze_loss
from promptiter.offline.attribution.format_blame import blame_format, find_writer
from promptiter.offline.attribution.references import find_common_traits
from promptiter.offline.attribution.route_blame import blame_wrong_route, join_nodes, list_routes
from promptiter.offline.attribution.tool_blame import blame_tools
from promptiter.offline.attribution.trace_context import TraceContext
from promptiter.offline.attribution.traversal import choose_losing_steps, follow_missing, follow_unexpected
from promptiter.offline.attribution.value_search import split_values
from promptiter.offline.text.matching import normalize
from promptiter.stages.contracts import AttributeRequest, BackwardResult
from promptiter.stages.losses import Category, Loss
from traces import Step


@dataclass(frozen=True, slots=True)
class _Evidence:
    """A kind of evidence: how much it is trusted, and the category of the gradients that it leads to."""

    confidence: float
    category: Category = "response"


LOST, LOST_WEAKLY, INTRODUCED, SUSPECT = _Evidence(0.9), _Evidence(0.5), _Evidence(0.7), _Evidence(0.6)
LOST_KEY = _Evidence(0.4)
ERROR, LIMIT, ROUTE = _Evidence(0.7, "error"), _Evidence(0.5, "other"), _Evidence(0.5, "route")
KNOWLEDGE, UNUSED_TOOL, UNEXPLAINED = _Evidence(0.2, "knowledge"), _Evidence(0.2, "wrong_tool"), _Evidence(0.3)


KEY_KINDS = frozenset(("id", "number", "date", "address"))
"""The kinds of values that a function may look something up by."""


class EvidenceAttributor:
    """An Attributor that needs no model. It makes no calls, and equal requests have equal results."""

    model: ClassVar[None] = None

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        """The results of the visited steps, in the order of the trace."""
        attribution = _Attribution(request)
        attribution.run()
        return attribution.collector.build_results()


@dataclass(frozen=True, slots=True)
class _LocatedLoss:
    """A loss, analyzed, and the steps that it is on."""

    analysis: LossAnalysis
    step_ids: tuple[str, ...]


class _Attribution:
    """The attribution of one trace."""

    def __init__(self, request: AttributeRequest) -> None:
        self.context = TraceContext(request)
        self.collector = BlameCollector(self.context)
        self.located = self._locate(request.case_loss.losses)
        for located in self.located:
            self.collector.mark_visited(located.step_ids)

    def run(self) -> None:
        """Go from certain to likely evidence; less certain evidence counts only where there is none that is better."""
        if not self._blame_wrong_route():
            self._blame_steps()
        self._blame_limits()

    def _blame_wrong_route(self) -> bool:
        """Blame the step that chose a wrong route. What ran after it is unobserved."""
        if not self.located:
            return False
        findings = [finding for located in self.located for finding in located.analysis.tool_findings]
        worst = min(located.analysis.loss.severity for located in self.located)
        return blame_wrong_route(findings, self.collector, severity=worst)

    def _blame_steps(self) -> None:
        self._blame_errors()
        for located in self.located:
            findings, severity = located.analysis.tool_findings, located.analysis.loss.severity
            blame_tools(findings, self.collector, last=located.step_ids[-1], severity=severity)
        for located in self.located:
            self._blame_lost(located)
            self._blame_replaced(located)
        for blame in (self._blame_introduced, self._blame_suspects, self._blame_lost_keys):
            if not self.collector:
                blame()
        unobserved = self.context.find_descendants(list(self.collector.blamed))
        for located in self.located:
            rules, severity = located.analysis.format_rules, located.analysis.loss.severity
            last = located.step_ids[-1]
            blame_format(rules, self.collector, last=last, severity=severity, unobserved=unobserved)
        for blame in (self._blame_route, self._blame_without_evidence):
            if not self.collector:
                blame()

    def _locate(self, losses: Sequence[Loss]) -> list[_LocatedLoss]:
        """Analyze the losses; one that is on several steps is analyzed once."""
        request = self.context.request
        expected = [loss.expected for loss in losses[:1]]
        references = find_common_traits([*expected, *(peer.expected for peer in request.peers)])
        groups: defaultdict[tuple[str, str, str], list[Loss]] = defaultdict(list)
        for loss in losses:
            if loss.step_id in self.context.steps:
                groups[loss.metric, loss.category, loss.text].append(loss)
        located = []
        for same in groups.values():
            step_ids = self._find_answering_steps(same)
            output = self.context.texts.output(step_ids[-1]).raw
            analysis = analyze_loss(same[0], references, output=output, user_input=request.case_loss.input)
            located.append(_LocatedLoss(analysis, step_ids))
        return located

    def _find_answering_steps(self, losses: Sequence[Loss]) -> tuple[str, ...]:
        """The steps of a loss in the order of the trace; of several ends, those whose output was judged, if known."""
        judged = {normalize(finding.actual) for finding in losses[0].findings if isinstance(finding.actual, str)}
        ends = sorted({loss.step_id for loss in losses}, key=self.context.position.__getitem__)
        return tuple(end for end in ends if normalize(self.context.texts.output(end).raw) in judged) or tuple(ends)

    def _blame_errors(self) -> None:
        for located in self.located:
            for step_id in located.step_ids if located.analysis.loss.category == "error" else ():
                error = self.context.steps[step_id].error or located.analysis.loss.text
                subject = repr(str(error)[:200])
                self._add(located, step_id, ERROR, reason="This step failed", subject=subject)

    def _blame_lost(self, located: _LocatedLoss) -> None:
        """Blame the steps that lost values. Weak values may be dropped for good reason: blame those that lost most."""
        lost = self._find_lost(located, located.analysis.of_kind("missing", is_strong=True))
        lost = lost or self._find_lost(located, located.analysis.of_kind("missing", is_strong=False))
        weak_counts = Counter(step_id for mismatch, step_ids in lost if not mismatch.is_strong for step_id in step_ids)
        most = max(weak_counts.values(), default=0)
        for mismatch, step_ids in lost:
            self._add_lost(
                located, mismatch, [each for each in step_ids if mismatch.is_strong or weak_counts[each] == most]
            )

    def _blame_replaced(self, located: _LocatedLoss) -> None:
        """Blame the steps that replaced a value: it was lost there, or else the other one was introduced there."""
        for mismatch in located.analysis.of_kind("replaced"):
            for each, step_ids in (lost := self._find_lost(located, [mismatch])):
                self._add_lost(located, each, step_ids)
            if not lost:
                self._add_introduced(located, mismatch)

    def _add_lost(self, located: _LocatedLoss, mismatch: Mismatch, step_ids: Sequence[str]) -> None:
        for step_id in step_ids:
            user = "later steps need" if step_id in self.context.steps_with_successors else "the answer needs"
            reason = f"This step received values that {user}, and its output lacks them"
            evidence = LOST if mismatch.is_strong else LOST_WEAKLY
            share = 1 / self._count_nodes(step_ids)
            self._add(located, step_id, evidence, reason=reason, subject=mismatch, share=share)

    def _find_lost(self, located: _LocatedLoss, mismatches: Iterable[Mismatch]) -> list[tuple[Mismatch, list[str]]]:
        """The values that were lost, and where. A longer text that no step had as a whole is followed in its parts."""
        lost: list[tuple[Mismatch, list[str]]] = []
        waiting = deque(mismatches)
        while waiting:
            mismatch = waiting.popleft()
            walk = follow_missing(self.context, mismatch, starts=located.step_ids)
            self.collector.add_packets(walk, mismatch, severity=located.analysis.loss.severity)
            if chosen := choose_losing_steps(self.context, mismatch, walk=walk, needed=located.analysis.needed):
                lost.append((mismatch, chosen))
            elif walk.visited and mismatch.value.kind == "text":
                waiting.extend(mismatch.split())
        return lost

    def _blame_introduced(self) -> None:
        """Blame the steps that introduced what replaces a missing value, or what should not be there."""
        for located in self.located:
            missing = located.analysis.of_kind("missing")
            unexpected = [] if missing else located.analysis.of_kind("unexpected", is_strong=True)
            for mismatch in (*missing, *unexpected):
                self._add_introduced(located, mismatch)

    def _add_introduced(self, located: _LocatedLoss, mismatch: Mismatch) -> None:
        value = mismatch.value if mismatch.kind == "unexpected" else mismatch.counterpart
        if value is None:
            return
        walk = follow_unexpected(self.context, value, starts=located.step_ids)
        self.collector.add_packets(walk, mismatch, severity=located.analysis.loss.severity)
        instead = "" if mismatch.kind == "unexpected" else f" instead of {self._describe(mismatch)}"
        subject, finding = f"{value.text!r}{instead}", mismatch.finding
        reason = "This step's output has values that it did not receive"
        for origin in walk.origins:
            share = 1 / self._count_nodes(walk.origins)
            self._add(located, origin, INTRODUCED, reason=reason, subject=subject, share=share, finding=finding)

    def _blame_suspects(self) -> None:
        """Blame the nodes that introduce such values in passing runs and do not here."""
        for located in self.located:
            for mismatch in located.analysis.of_kind("missing"):
                pattern = self.context.pattern_of(mismatch)
                suspect = self.context.find_suspect(pattern)
                if pattern is not None and suspect is not None:
                    step, score = suspect
                    reason = f"In passing runs this node is the first to output {pattern.name}; here it outputs none"
                    self._add(located, step.id, SUSPECT, reason=reason, subject=mismatch, share=score)

    def _blame_lost_keys(self) -> None:
        """Blame the steps because of which no function got an id, a number or a date of the request to look up."""
        texts, steps = self.context.texts, self.context.trace.steps
        keys = [value for value in split_values(self.context.request.case_loss.input) if value.kind in KEY_KINDS]
        functions = [step for step in steps if step.surface_reads == {} and step.sources]
        is_received = any(texts.input(step.id).contains(value) for step in functions for value in keys)
        if is_received or not functions:
            return
        reason = f"No step had what the answer lacks, and {functions[0].node_id!r} got no value to look it up by"
        for located in self.located:
            for value in {value.key: value for value in keys}.values() if located.analysis.of_kind("missing") else ():
                mismatch = Mismatch(kind="missing", value=value, finding=Finding(kind="missing", expected=value.text))
                walk = follow_missing(self.context, mismatch, starts=[functions[0].id], is_surely_lacking=True)
                self.collector.add_packets(walk, mismatch, severity=located.analysis.loss.severity)
                for step_id in choose_losing_steps(self.context, mismatch, walk=walk):
                    self._add(located, step_id, LOST_KEY, reason=reason, subject=mismatch)

    def _blame_limits(self) -> None:
        """Blame the slowest or most expensive step for a run that is above a limit."""
        for located in self.located:
            for finding in located.analysis.limit_findings:
                measure = _duration_ns if finding.predicate == "max_duration_s" else _cost_usd
                steps = (step for step in self.context.trace.steps if self.context.editable_surfaces(step))
                most = max(steps, key=measure, default=None)
                if most is not None and measure(most) > 0:
                    reason = f"The run is above {finding.predicate}, and this step took the largest share"
                    subject = f"{finding.actual} is above {finding.expected}"
                    self._add(located, most.id, LIMIT, reason=reason, subject=subject, finding=finding)

    def _blame_route(self) -> None:
        """Blame the first step after which the run took a route that no passing run takes."""
        known: defaultdict[str, set[frozenset[str]]] = defaultdict(set)
        for peer in self.context.request.peers:
            if peer.passed:
                for node_id, successors in list_routes(peer.trace):
                    known[node_id].add(successors)
        for step, (node_id, successors) in zip(self.context.trace.steps, list_routes(self.context.trace), strict=True):
            if node_id in known and successors not in known[node_id] and self.located:
                usual = " or ".join(sorted(join_nodes(each) for each in known[node_id]))
                reason = "After this step the run took a route that no passing run takes"
                subject = f"to {join_nodes(successors)} instead of {usual}"
                self._add(self.located[0], step.id, ROUTE, reason=reason, subject=subject)
                return

    def _blame_without_evidence(self) -> None:
        """Blame the step with the loss, or the last step with tools that it did not use."""
        idle = [step.id for step in self.context.trace.steps if self._has_idle_tools(step)][-1:]
        evidence = UNUSED_TOOL if idle else KNOWLEDGE
        reason = "No step received these values; if this step should know them, its instructions must say so"
        if idle:
            reason = "No step received these values, and this step has tools that it did not use"
        for located in self.located:
            missing = located.analysis.of_kind("missing")
            for mismatch in missing:
                step_id = (*idle, find_writer(self.context, located.step_ids[-1]))[0]
                self._add(located, step_id, evidence, reason=reason, subject=mismatch)
            if not missing and not located.analysis.limit_findings:
                loss, unclear = located.analysis.loss, "The answer is wrong, and nothing shows where it went wrong"
                weak = replace(UNEXPLAINED, category=loss.category)
                self._add(located, located.step_ids[-1], weak, reason=unclear, subject=repr(loss.text[:200]))

    def _has_idle_tools(self, step: Step) -> bool:
        has_tools = self.context.has_tool(step.node_id)
        return bool(has_tools and not step.tool_calls and self.context.editable_surfaces(step))

    def _describe(self, mismatch: Mismatch) -> str:
        return describe_value(mismatch.value.text, self.context.field_name(mismatch))

    def _count_nodes(self, step_ids: Iterable[str]) -> int:
        return len({self.context.steps[step_id].node_id for step_id in step_ids})

    def _add(
        self,
        located: _LocatedLoss,
        step_id: str,
        evidence: _Evidence,
        *,
        reason: str,
        subject: str | Mismatch,
        share: float = 1.0,
        finding: Finding | None = None,
    ) -> None:
        """Blame a step with a share of the confidence in the evidence; a mismatch is its own subject and finding."""
        if isinstance(subject, Mismatch):
            finding = subject.finding
            subject = self._describe(subject)
        self.collector.add(
            Blame(
                step_id=step_id,
                reason=reason,
                subject=subject,
                category=evidence.category,
                confidence=evidence.confidence * share,
                severity=located.analysis.loss.severity,
                finding=finding,
            )
        )


def _duration_ns(step: Step) -> float:
    return step.duration_ns or 0


def _cost_usd(step: Step) -> float:
    return step.usage.cost_usd or 0.0 if step.usage is not None else 0.0
