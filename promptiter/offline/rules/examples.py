"""What the predicate detectors look at, and what they find.

A Sample is one execution of the step with all that can be said about how it should have gone. A Predicate is a rule
that a good output obeys; it can say of each sample whether the references want it, and whether the output has it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

from promptiter.evaluation.score import Finding
from promptiter.offline.text.fields import as_written, read_fields
from promptiter.stages.contracts import StepExample
from traces.model import Json

Comparison: TypeAlias = Literal["whole", "part", "json", "number", "none"]
"""How an output is held against its reference: all of it counts, it must contain the reference, it is compared as JSON,
by its number, or not at all (the reference is a pattern, or only a length counts)."""

FEWEST_CASES = 3

MOST_SAMPLES = 100
"""So many failing, and so many passing samples are looked at."""

LONGEST_TEXT = 8_000
"""Of a longer text only so many characters are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One execution of the step.

    `reference` is what the step should have written; None of an inner step, unless its run passed. `wanted` are texts
    that hold what the whole case needs: of an inner step, a field is wanted if its value stands there.
    """

    case_id: str
    input: str
    output: str
    passed: bool
    is_terminal: bool
    reference: str | None = None
    wanted: tuple[str, ...] = ()
    compared: Comparison = "whole"
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tool_calls: tuple[Json, ...] = ()
    expected_tool_calls: tuple[Json, ...] | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The samples of one surface.

    `tool` is the tool whose description the surface is, empty for any other surface; `tools` are those of its node. A
    literal (a first word, a label, a keyword) is a rule only if at least `fewest` cases share it.
    """

    failing: tuple[Sample, ...]
    passing: tuple[Sample, ...]
    compared: Comparison = "whole"
    tool: str = ""
    tools: frozenset[str] = frozenset()
    fewest: int = FEWEST_CASES

    @property
    def samples(self) -> tuple[Sample, ...]:
        return self.failing + self.passing

    @property
    def referenced(self) -> list[tuple[Sample, str]]:
        """One sample for each case of which it is known what should have been written, with that."""
        known = [sample for sample in self.samples if sample.reference is not None]
        return [(sample, sample.reference or "") for sample in one_by_case(known)]

    @property
    def is_whole(self) -> bool:
        """Whether the references are whole outputs, so that their form counts from the first word to the last."""
        return self.compared in ("whole", "none")


Verdict: TypeAlias = bool | None
"""None: the sample says nothing about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A rule of one family. `wants`: a good output of this sample obeys it; `has`: its output does.

    `fault` says what failing outputs do, `virtue` what passing ones do: "17 of 18 failing outputs lack the order id".
    `subject` names what the rule is about where a family has several: its field, tool or argument. A conditional rule
    is for some inputs only; one of a metric is its own, and needs no reference.
    """

    family: str
    parameters: tuple[str, ...] = ()
    wants: Callable[[Sample], Verdict] = field(compare=False, repr=False)
    has: Callable[[Sample], Verdict] = field(compare=False, repr=False)
    fault: str = field(compare=False)
    virtue: str = field(compare=False, default="do not")
    subject: str = ""
    is_conditional: bool = False
    is_of_metric: bool = False


Detector: TypeAlias = Callable[[Evidence], Iterable[Predicate]]
TextTest: TypeAlias = Callable[[str, Sample], Verdict]


def text_predicate(
    family: str,
    parameters: Iterable[str] = (),
    *,
    test: TextTest,
    fault: str,
    virtue: str = "do not",
    subject: str = "",
    is_conditional: bool = False,
    reference: Callable[[Sample], str | None] = lambda sample: sample.reference,
) -> Predicate:
    """A predicate that is tested on texts: on the reference, and on the output.

    Where the reference is only a part of the output, what it lacks may well stand elsewhere: that says nothing.
    """

    def wants(sample: Sample) -> Verdict:
        wanted = reference(sample)
        if wanted is None:
            return None
        verdict = test(wanted, sample)
        return None if verdict is False and sample.compared == "part" else verdict

    return Predicate(
        family=family,
        parameters=tuple(parameters),
        wants=wants,
        has=lambda sample: test(sample.output, sample),
        fault=fault,
        virtue=virtue,
        subject=subject,
        is_conditional=is_conditional,
    )


def evidence_of(
    failing: Iterable[StepExample], passing: Iterable[StepExample], *, tool: str = "", tools: Iterable[str] = ()
) -> Evidence:
    """The evidence in the examples of a step, in the order of their cases."""
    bad, good = (sorted(examples, key=_order)[:MOST_SAMPLES] for examples in (failing, passing))
    compared = _comparison(bad)
    samples = [_sample(example, compared=compared if example.is_terminal else "whole") for example in (*bad, *good)]
    return Evidence(tuple(samples[: len(bad)]), tuple(samples[len(bad) :]), compared, tool, frozenset(tools))


def one_by_case(samples: Iterable[Sample]) -> list[Sample]:
    """The first sample of each case: what several repeats or visits of one case share is still said by one case."""
    found: dict[str, Sample] = {}
    for sample in samples:
        found.setdefault(sample.case_id, sample)
    return list(found.values())


def has_text(text: str, value: str) -> bool:
    """Whether a text holds a value as words of its own, whatever their case."""
    needle, haystack = plain(value), plain(text)
    start = haystack.find(needle) if needle else -1
    while start != -1:
        end = start + len(needle)
        if not _is_inside_word(haystack, start) and not _is_inside_word(haystack, end):
            return True
        start = haystack.find(needle, start + 1)
    return False


@lru_cache(maxsize=8192)
def plain(text: str) -> str:
    """The text as it is compared: one kind of space, small letters."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _is_inside_word(text: str, place: int) -> bool:
    return 0 < place < len(text) and all(each.isalnum() or each == "_" for each in text[place - 1 : place + 1])


def is_safe_literal(text: str) -> bool:
    """Whether a literal can stand in a prompt: short, on one line, and with no braces that look like a placeholder."""
    return 0 < len(text) <= 80 and not re.search(r'[{}"\n]', text)


def _order(example: StepExample) -> tuple[str, str, str, str]:
    return example.case_id, example.step_id, example.input, example.output


def _comparison(failing: Iterable[StepExample]) -> Comparison:
    """How most of the findings came about; without any, all of an output counts."""
    votes = Counter(
        _COMPARISONS[finding.predicate]
        for example in failing
        if example.is_terminal
        for finding in example.findings
        if finding.predicate in _COMPARISONS
    )
    return max(_STRICT_FIRST, key=lambda each: votes[each])


_STRICT_FIRST: tuple[Comparison, ...] = ("whole", "json", "part", "number", "none")
_COMPARISONS: Mapping[str, Comparison] = {
    "exact": "whole",
    "rouge1": "whole",
    "rouge2": "whole",
    "rougeL": "whole",
    "contains": "part",
    "json": "json",
    "valid_json": "json",
    "json_schema": "json",
    "number": "number",
    "only_number": "number",
    "regex": "none",
    "max_length": "none",
    "min_length": "none",
}


def _sample(example: StepExample, *, compared: Comparison) -> Sample:
    reference = example.expected if example.is_terminal and compared != "none" else None
    if reference is None and example.passed:
        reference = example.output
    lost = tuple(text for finding in example.findings if (text := _lost_text(finding)))
    return Sample(
        case_id=example.case_id,
        input=example.input[:LONGEST_TEXT],
        output=example.output[:LONGEST_TEXT],
        passed=example.passed,
        is_terminal=example.is_terminal,
        reference=None if reference is None else reference[:LONGEST_TEXT],
        wanted=lost or ((example.expected[:LONGEST_TEXT],) if example.expected else ()),
        compared=compared,
        fields=_fields(example),
        tool_calls=example.tool_calls,
        expected_tool_calls=example.expected_tool_calls,
        findings=example.findings,
    )


def _fields(example: StepExample) -> Mapping[str, tuple[str, ...]]:
    """The fields of what the step was given: its input, and what its tools told it."""
    results = [call["result"] for call in example.tool_calls if isinstance(call, dict) and call.get("result")]
    told = [read_fields(as_written(result)[:LONGEST_TEXT]) for result in results]
    return {
        name: values
        for fields in (*reversed(told), read_fields(example.input[:LONGEST_TEXT]))
        for name, values in fields.items()
    }


def _lost_text(finding: Finding) -> str:
    """What a finding misses, as text; a rule that was violated is no text."""
    if finding.kind not in ("missing", "wrong") or finding.expected is None:
        return ""
    if finding.predicate.startswith("tool"):
        return ""
    if isinstance(finding.expected, list | tuple):
        return " ".join(map(as_written, finding.expected))
    return as_written(finding.expected)
