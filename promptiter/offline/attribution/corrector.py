"""ReferenceCorrector: corrects a step without a model, from the expected answer and from what the step was given.

What the answer lacks and the step had in its input, but not in its output, was lost here, and is put back in its exact
writing; unless branches side by side lost it, of which one may be right to. What was lost before the step is not its
fault. The step that wrote the answer is given the expected one, if
all that this is made of had reached it. Where the answer lacks nothing that can be looked for, or what it lacks was
never there, this corrector cannot tell.
"""

from __future__ import annotations

import re
from decimal import Decimal

import orjson

from promptiter.backprop.corrections import Correction, CorrectionRequest, same_shape
from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from promptiter.offline.attribution.expected_values import Atoms, take_apart
from promptiter.offline.attribution.references import references_of
from promptiter.offline.attribution.value_search import (
    FoldedText,
    TraceTexts,
    Value,
    field_of,
    json_text,
    snapshot_text,
)
from promptiter.offline.text.dates import dates_in

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\d)")


class ReferenceCorrector:
    """A Corrector that needs no model. It makes no calls, and the same request always has the same answer."""

    async def correct(self, request: CorrectionRequest) -> Correction:
        """The step's output with what it lost; or the expected answer, for the step that wrote the answer."""
        if request.expected is None or not request.is_whole:
            return Correction(kind="unknown", reason="there is no expected answer to compare with")
        try:
            return self._corrected(request, request.expected)
        except ValueError:  # the step gives data, and what should stand there is none
            return Correction(kind="unknown", reason="the corrected output does not have the form of the step's own")

    def _corrected(self, request: CorrectionRequest, expected: str) -> Correction:
        reach = Reach(request)
        if request.is_answer and not reach.is_short_of_anything:
            answer = same_shape(expected, request.step.output)
            return Correction(kind="corrected", output=answer, reason="it had all that the expected answer needs")
        lost = reach.lost_here
        if lost:
            told = ", ".join(repr(value.text) for value in lost)
            return Correction(kind="corrected", output=_restored(request, lost), reason=f"it lost {told}")
        if reach.is_innocent:
            return Correction(kind="no_better", reason="what the answer lacks was lost elsewhere")
        return Correction(kind="unknown", reason="what the answer lacks cannot be looked for in this step")


class Reach:
    """What the answer of a run lacks, as one step sees it: what reached it, what it lost, what was lost before it."""

    def __init__(self, request: CorrectionRequest) -> None:
        self.request = request
        step, texts = request.step, TraceTexts(request.trace)
        self.output = texts.output(step.id)
        handed = (texts.output(source).raw for source in step.predecessors)
        self.given = FoldedText("\n".join((texts.input(step.id).raw, texts.results(step.id).raw, *handed)))
        before = _before(request)
        said = [request.case_loss.input, *(texts.output(each).raw for each in before)]
        self.upstream = FoldedText("\n".join((*said, *(texts.results(each).raw for each in before))))
        references = references_of((*request.references, request.expected))
        ends = [each for each in request.trace.steps if each.id in {loss.step_id for loss in request.case_loss.losses}]
        final = snapshot_text(ends[-1].output) if ends else ""
        atoms = [
            take_apart(loss, references, output=final, request=request.case_loss.input)
            for loss in request.case_loss.losses
        ]
        self._texts = texts
        self._answer = FoldedText(final)
        self._missing = [atom for each in atoms for atom in each.of_kind("missing")]
        self.wanted = self._wanted(atoms)

    def _wanted(self, atoms: list[Atoms]) -> list[Value]:
        """What the answer should hold and does not, or not in that writing: only what hardly shows by chance."""
        strong = [atom.value for atom in self._missing if atom.is_strong]
        rewritten = [
            value
            for each in atoms
            for value in each.needed
            if value.kind in ("date", "number") and self._answer.shows(value) and not self._answer.writes(value)
        ]
        return list({value.key: value for value in (*strong, *rewritten)}.values())

    @property
    def lost_here(self) -> list[Value]:
        """What the step was given, exactly so, and did not hand on; and no other step either."""
        mine = [value for value in self.wanted if self.given.writes(value) and not self.output.writes(value)]
        return [value for value in mine if self._losing_nodes(value) <= {self.request.step.node_id}]

    def _losing_nodes(self, value: Value) -> set[str]:
        texts = self._texts
        return {
            step.node_id
            for step in self.request.trace.steps
            if step.predecessors and step.surface_reads != {} and not texts.output(step.id).writes(value)
            if any(texts.output(source).writes(value) for source in step.predecessors)
        }

    @property
    def is_short_of_anything(self) -> bool:
        """Whether the answer needs something that did not reach the step, or not in the writing that it once had."""
        return any(not self.given.shows(atom.value) for atom in self._missing) or any(
            not self.given.writes(value) and self.upstream.writes(value) for value in self.wanted
        )

    @property
    def is_innocent(self) -> bool:
        """Whether all that the answer lacks was handed on by the step, or lost before it."""
        return bool(self.wanted) and all(
            self.output.writes(value) or (not self.given.writes(value) and self.upstream.writes(value))
            for value in self.wanted
        )

    def smuggled(self, output: str) -> list[Value]:
        """What a correction holds although it had been lost before the step, which so could not know it."""
        corrected = FoldedText(output)
        return [
            value
            for value in self.wanted
            if corrected.shows(value) and not self.given.shows(value) and self.upstream.shows(value)
        ]


def _before(request: CorrectionRequest) -> list[str]:
    """The steps that the step depends on."""
    wanted = set(request.step.predecessors)
    for step in reversed(request.trace.steps):
        if step.id in wanted:
            wanted.update(step.predecessors)
    return [step.id for step in request.trace.steps if step.id in wanted]


def _restored(request: CorrectionRequest, lost: list[Value]) -> object:
    """The step's output with these values as they were given."""
    step = request.step
    text, given = snapshot_text(step.output), snapshot_text(step.input)
    for value in lost:
        text = _rewritten(text, value, given=given)
        if not FoldedText(text).writes(value):
            text = _added(text, value, given=given)
    return same_shape(text, step.output)


def _rewritten(text: str, value: Value, *, given: str) -> str:
    """A text with the value in place of the same date in another writing, or of the number it was rounded to."""
    if value.kind == "date":
        for day in dates_in(text):
            if not value.days.isdisjoint(day.days):
                return text.replace(day.text, value.text, 1)
    if value.number is not None:
        for found in _NUMBER.finditer(text):
            is_new = found[0] not in given
            if is_new and abs(Decimal(found[0]) - value.number) < 1:
                return text[: found.start()] + value.text + text[found.end() :]
    return text


def _added(text: str, value: Value, *, given: str) -> str:
    """A text with the value added: under its name in a JSON object, else on a line of its own."""
    name = field_of(value, given)
    try:
        document = parse_json(text)
    except NotJsonError:
        document = None
    if isinstance(document, dict):
        return orjson.dumps({**document, (name or value.kind).replace(" ", "_"): value.text}).decode()
    whole = next((line.strip() for line in given.splitlines() if FoldedText(line).writes(value)), "")
    is_record = whole.startswith("{")
    line = f"{name}: {value.text}" if name and (is_record or len(whole) > 200) else whole or json_text(value.text)
    return f"{text}\n{line}" if text else line
