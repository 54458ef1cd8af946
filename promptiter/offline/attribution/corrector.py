"""ReferenceCorrector: corrects a step without a model, from the expected answer and from what the step received.

A value that the answer lacks, and that the step received but did not output, was lost here. It is put back exactly as
written, unless parallel branches lost it, of which one may be right to. What was lost before the step is not its
fault. The step that wrote the answer gets the expected answer, if everything in it had reached the step. If the answer
lacks nothing that can be searched for, or what it lacks was never there, the correction is unknown.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import ClassVar

import orjson

from promptiter.backprop.corrections import Correction, CorrectionRequest, parse_like
from promptiter.backprop.step_text import json_text, snapshot_text
from promptiter.grouping import ById, group_by
from promptiter.offline.attribution.expected_values import LossAnalysis, Mismatch, analyze_loss, is_short_word
from promptiter.offline.attribution.references import find_common_traits
from promptiter.offline.attribution.value_search import SearchText, TraceTexts, Value, find_field_name, split_values
from promptiter.offline.text.dates import find_dates
from promptiter.offline.text.matching import contains_whole, read_document
from promptiter.offline.text.tokens import parse_number, tokenize
from promptiter.stages.losses import CaseLoss
from traces import ExecutionTrace, Step


class ReferenceCorrector:
    """A Corrector that needs no model. It makes no calls, and equal requests have equal results."""

    model: ClassVar[None] = None

    async def correct(self, request: CorrectionRequest) -> Correction:
        """The step's output with what it lost; or the expected answer, for the step that wrote the answer."""
        if request.expected is None or not request.is_whole:
            return Correction(kind="unknown", reason="there is no expected answer to compare with")
        try:
            return _correct(request, request.expected)
        except ValueError:  # the step outputs data, and the corrected text is not data
            return Correction(kind="unknown", reason="the corrected output does not have the format of the step's own")


def find_values_lost_earlier(request: CorrectionRequest, output: str) -> list[str]:
    """What a corrected output contains although it had been lost before the step, which could not know it."""
    flow, corrected = _ValueFlow(request), SearchText(output)
    return [
        value.text
        for value in flow.wanted
        if corrected.contains(value) and not flow.received.contains(value) and flow.is_upstream(value)
    ]


def _correct(request: CorrectionRequest, expected: str) -> Correction:
    flow = _ValueFlow(request)
    if request.is_answer and not flow.is_input_incomplete:
        answer = parse_like(expected, request.step.output)
        return Correction(kind="corrected", output=answer, reason="it received all that the expected answer needs")
    lost = flow.lost_here
    if lost:
        names = ", ".join(repr(value.text) for value in lost)
        return Correction(kind="corrected", output=_restore_values(request, lost), reason=f"it lost {names}")
    if flow.is_blameless:
        return Correction(kind="no_better", reason="what the answer lacks was lost elsewhere")
    return Correction(kind="unknown", reason="what the answer lacks cannot be searched for in this step")


class _RunValues:
    """The values that the answer of a run lacks, and where in the run they are. All steps of a run share it.

    `short` words, such as a unit, are in too many texts to be followed, but a step cannot know one that it did not get.
    """

    def __init__(self, case_loss: CaseLoss, trace: ExecutionTrace, references: tuple[str, ...]) -> None:
        self.texts = TraceTexts(trace)
        self._trace = trace
        self._said = SearchText(case_loss.input)
        losses = list(group_by(case_loss.losses, lambda loss: repr(replace(loss, step_id=""))).values())
        expected = next((loss.expected for loss in case_loss.losses if loss.expected is not None), None)
        traits = find_common_traits((*references, expected))
        places = {loss.step_id for loss in case_loss.losses}
        ends = [each for each in trace.steps if each.id in places]
        final = snapshot_text(ends[-1].output) if ends else ""
        analyses = [analyze_loss(same[0], traits, output=final, user_input=case_loss.input) for same in losses]
        self.missing = [mismatch for each in analyses for mismatch in each.of_kind("missing")]
        self.replaced = [mismatch for each in analyses for mismatch in each.of_kind("replaced")]
        self.wanted = self._collect_wanted(analyses, SearchText(final))
        self.short = [
            value
            for value in split_values(expected or "")
            if is_short_word(value) and not traits.is_common("", value) and not SearchText(final).contains(value)
        ]
        self._upstream: dict[tuple[tuple[str, ...], bool], set[str]] = {}
        self._losing: dict[tuple[str, ...], set[str]] = {}

    def _collect_wanted(self, analyses: list[LossAnalysis], answer: SearchText) -> list[Value]:
        """What the answer should contain and does not, or not written so: only what is hardly there by chance."""
        strong = [mismatch.value for mismatch in self.missing if mismatch.is_strong]
        rewritten = [
            value
            for each in analyses
            for value in each.needed
            if value.kind in ("date", "number")
            if answer.contains(value) and not answer.contains_verbatim(value)
        ]
        return list({value.key: value for value in (*strong, *rewritten)}.values())

    def is_upstream(self, value: Value, step: Step, *, verbatim: bool) -> bool:
        """Whether the user said a value, or a step that this one depends on had it."""
        key = (*value.key, value.text), verbatim
        if key not in self._upstream:
            self._upstream[key] = self._find_steps_after(value, verbatim=verbatim)
        return step.id in self._upstream[key]

    def _find_steps_after(self, value: Value, *, verbatim: bool) -> set[str]:
        def has(text: SearchText) -> bool:
            return text.contains_verbatim(value) if verbatim else text.contains(value)

        if has(self._said):
            return {step.id for step in self._trace.steps}
        having: set[str] = set()
        after: set[str] = set()
        for step in self._trace.steps:
            if not having.isdisjoint(step.sources) or not after.isdisjoint(step.sources):
                after.add(step.id)
            if has(self.texts.output(step.id)) or has(self.texts.tool_results(step.id)):
                having.add(step.id)
        return after

    def find_losing_nodes(self, value: Value) -> set[str]:
        """The nodes that read a value, written exactly so, and did not pass it on."""
        key = (*value.key, value.text)
        if key not in self._losing:
            texts = self.texts
            self._losing[key] = {
                step.node_id
                for step in self._trace.steps
                if step.sources and step.surface_reads != {} and not texts.output(step.id).contains_verbatim(value)
                if any(texts.output(source).contains_verbatim(value) for source in step.sources)
            }
        return self._losing[key]


@lru_cache(maxsize=16)
def _read_run(case_loss: ById[CaseLoss], trace: ById[ExecutionTrace], references: tuple[str, ...]) -> _RunValues:
    return _RunValues(case_loss.value, trace.value, references)


class _ValueFlow:
    """The values that the answer of a run lacks, seen from one step: received, lost here, or lost before."""

    def __init__(self, request: CorrectionRequest) -> None:
        self.request = request
        self._run = _read_run(ById(request.case_loss), ById(request.trace), request.references)
        self.wanted = self._run.wanted

    @property
    def output(self) -> SearchText:
        return self._run.texts.output(self.request.step.id)

    @cached_property
    def received(self) -> SearchText:
        """What the step read: its input, the results of its tools, and the outputs of the steps before it."""
        step, texts = self.request.step, self._run.texts
        passed_on = [texts.output(source).raw for source in step.sources]
        return SearchText("\n".join((texts.input(step.id).raw, texts.tool_results(step.id).raw, *passed_on)))

    @property
    def lost_here(self) -> list[Value]:
        """What the step received, written exactly so, and did not pass on; and no other node lost it either."""
        mine = [
            value
            for value in self.wanted
            if self.received.contains_verbatim(value) and not self.output.contains_verbatim(value)
        ]
        return [value for value in mine if self._run.find_losing_nodes(value) <= {self.request.step.node_id}]

    @property
    def is_input_incomplete(self) -> bool:
        """Whether the answer needs something that did not reach the step, or not as it was once written."""
        return (
            any(not self.received.contains(mismatch.value) for mismatch in self._run.missing)
            or any(map(self._is_received_wrong, (*self._run.missing, *self._run.replaced)))
            or any(map(self._is_lost_before, self.wanted))
            or any(not self.received.contains(value) and self.is_upstream(value) for value in self._run.short)
        )

    def _is_received_wrong(self, mismatch: Mismatch) -> bool:
        """Whether the step already received what the answer has in place of the expected value.

        The expected value may be in its input as well, for another part of the answer: then it is there less often than
        the answer needs it.
        """
        value, other = mismatch.value, mismatch.counterpart
        if other is None or not self.received.contains(other):
            return False
        if value.kind == "pair":
            return not self.received.contains(value)
        texts, step = self._run.texts, self.request.step
        given = (texts.input(step.id).raw, "\n".join(texts.output(source).raw for source in step.sources))
        found = _count_value(value, texts.tool_results(step.id).raw) + max(_count_value(value, each) for each in given)
        return found < _count_value(value, self.request.expected or "")

    @property
    def is_blameless(self) -> bool:
        """Whether everything that the answer lacks was passed on by the step, or lost before it."""
        return bool(self.wanted) and all(
            self.output.contains_verbatim(value) or self._is_lost_before(value) for value in self.wanted
        )

    def is_upstream(self, value: Value) -> bool:
        """Whether the user said the value, or a step that this one depends on had it, however it is written."""
        return self._run.is_upstream(value, self.request.step, verbatim=False)

    def _is_lost_before(self, value: Value) -> bool:
        """Whether the value did not reach the step, written exactly so, although it was there before."""
        if self.received.contains_verbatim(value):
            return False
        return self._run.is_upstream(value, self.request.step, verbatim=True)


def _count_value(value: Value, text: str) -> int:
    return sum(each.key == value.key for each in split_values(text))


def _restore_values(request: CorrectionRequest, lost: list[Value]) -> object:
    """The step's output with these values as they were received."""
    step = request.step
    text, received = snapshot_text(step.output), snapshot_text(step.input)
    for value in lost:
        text = _rewrite_value(text, value, received=received)
        if not SearchText(text).contains_verbatim(value):
            text = _add_value(text, value, received=received)
    return parse_like(text, step.output)


def _rewrite_value(text: str, value: Value, *, received: str) -> str:
    """A text with the value in place of the same date written differently, or of the number it was rounded to."""
    if value.kind == "date":
        for day in find_dates(text):
            if not value.days.isdisjoint(day.days):
                return text.replace(day.text, value.text, 1)
    if value.number is not None:
        for token in tokenize(text).tokens:
            written = text[token.start : token.end]
            number = parse_number(written) if token.kind == "number" else None
            if number is not None and abs(number - value.number) < 1 and not contains_whole(received, written):
                return text[: token.start] + value.text + text[token.end :]
    return text


def _add_value(text: str, value: Value, *, received: str) -> str:
    """A text with the value added: under its name in a JSON object, otherwise on a new line."""
    name = find_field_name(value, received)
    document = read_document(text)
    if isinstance(document, dict):
        return orjson.dumps({**document, (name or value.kind).replace(" ", "_"): value.text}).decode()
    lines = (line.strip() for line in received.splitlines() if SearchText(line).contains_verbatim(value))
    whole = next(lines, "")
    is_record = whole.startswith("{")
    line = f"{name}: {value.text}" if name and (is_record or len(whole) > 200) else whole or json_text(value.text)
    return f"{text}\n{line}" if text else line
