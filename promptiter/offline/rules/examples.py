"""What the predicate detectors look at, and what they find.

A Sample is one execution of the step with everything that is known about its correct output. A Predicate is a rule
that a good output follows. For each sample it tells whether the reference wants it and whether the output has it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from promptiter.backprop.step_text import json_text
from promptiter.evaluation.score import Finding
from promptiter.offline.text.fields import read_fields
from promptiter.stages.optimizer import StepExample
from traces.model import Json

Comparison: TypeAlias = Literal["whole", "part", "json", "number", "none"]
"""How an output is compared with its reference: as a whole, by containing the reference, as JSON, by its number, or not
at all (the reference is a pattern, or only the length counts)."""

MIN_CASES = 3
MIN_SHARE = 0.9
"""What at least this share of the samples has in common becomes a rule."""

MAX_SAMPLES = 100
"""Maximum number of failing samples, and of passing samples."""

MAX_CHARACTERS = 8_000
"""Longer texts are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One execution of the step.

    `reference` is what the step should have written. It is unknown (None) for an inner step, unless its run passed or
    it chose a wrong route and the right one is known. `wanted` are texts
    with what the whole case needs: an inner step should pass on a field whose value is in one of them.
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
class SampleSet:
    """The samples of one surface.

    `tool` is the tool that the surface describes, and `field` the output field, whose values the outputs are; both are
    empty for any other surface. `tools` are those of its node, and `prompt` is its value. A literal (a first word, a
    label, a keyword) becomes a rule only if at least `min_cases` cases share it.
    """

    failing: tuple[Sample, ...]
    passing: tuple[Sample, ...]
    compared: Comparison = "whole"
    tool: str = ""
    field: str = ""
    tools: frozenset[str] = frozenset()
    prompt: str = ""
    min_cases: int = MIN_CASES

    @property
    def samples(self) -> tuple[Sample, ...]:
        return self.failing + self.passing

    @property
    def referenced(self) -> list[tuple[Sample, str]]:
        """One sample for each case whose reference is known, with the reference."""
        known = [sample for sample in self.samples if sample.reference is not None]
        return [(sample, sample.reference or "") for sample in take_one_per_case(known)]

    @property
    def is_of_router(self) -> bool:
        """Whether the step is blamed for the route that it chose."""
        return any(finding.predicate == "route" for sample in self.failing for finding in sample.findings)

    @property
    def is_whole(self) -> bool:
        """Whether references are whole outputs, so that their form matters from the first word to the last."""
        return self.compared in ("whole", "none")


Verdict: TypeAlias = bool | None
"""None: the sample is not evidence either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A rule of one family. `wants`: a good output of this sample follows it; `has`: its output does.

    `fault` describes failing outputs, `virtue` passing ones: "17 of 18 failing outputs lack the order id". `subject`
    is the field, tool or argument that the rule is about, for families with several. A conditional rule is for some
    inputs only; a rule of a metric needs no reference.
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


Detector: TypeAlias = Callable[[SampleSet], Iterable[Predicate]]
TextTest: TypeAlias = Callable[[str, Sample], Verdict]


def text_predicate(
    family: str,
    parameters: Iterable[str] = (),
    *,
    test: TextTest,
    fault: str,
    virtue: str = "do not",
    subject: str = "",
    reference: Callable[[Sample], str | None] = lambda sample: sample.reference,
) -> Predicate:
    """A predicate that is tested on texts: on the reference and on the output.

    Where the output only has to contain the reference, what the reference lacks may be elsewhere in the output.
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
    )


def collect_evidence(
    failing: Iterable[StepExample],
    passing: Iterable[StepExample],
    *,
    tool: str = "",
    tools: Iterable[str] = (),
    prompt: str = "",
) -> SampleSet:
    """The evidence of a step's examples, in the order of their cases."""
    bad, good = (sorted(examples, key=_sort_key)[:MAX_SAMPLES] for examples in (failing, passing))
    if not all(example.is_terminal for example in (*bad, *good)):
        bad = [replace(each, is_terminal=False) if _has_ended_early(each) else each for each in bad]
    compared = _choose_comparison(bad)
    samples = [
        _make_sample(example, compared=compared if example.is_terminal else "whole") for example in (*bad, *good)
    ]
    return SampleSet(
        tuple(samples[: len(bad)]),
        tuple(samples[len(bad) :]),
        compared,
        tool=tool,
        tools=frozenset(tools),
        prompt=prompt,
    )


def take_one_per_case(samples: Iterable[Sample]) -> list[Sample]:
    """The first sample of each case: several repeats or visits of one case are still one case."""
    found: dict[str, Sample] = {}
    for sample in samples:
        found.setdefault(sample.case_id, sample)
    return list(found.values())


def is_safe_literal(text: str) -> bool:
    """Whether a prompt can contain a literal: short, on one line, and without braces that look like a placeholder."""
    return 0 < len(text) <= 80 and not re.search(r'[{}"\n]', text)


def _sort_key(example: StepExample) -> tuple[str, str, str, str]:
    return example.case_id, example.step_id, example.input, example.output


def _has_ended_early(example: StepExample) -> bool:
    """Whether a step is the last one only because its run failed, given that the node is not last in other runs."""
    return example.is_terminal and not example.findings


def _choose_comparison(failing: Iterable[StepExample]) -> Comparison:
    """The comparison behind most findings; without any, outputs are compared as a whole."""
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


def _make_sample(example: StepExample, *, compared: Comparison) -> Sample:
    reference = example.expected if example.is_terminal and compared != "none" else _find_right_route(example)
    if reference is None and example.passed:
        reference = example.output
    lost = tuple(text for finding in example.findings if (text := _read_lost_text(finding)))
    return Sample(
        case_id=example.case_id,
        input=example.input[:MAX_CHARACTERS],
        output=example.output[:MAX_CHARACTERS],
        passed=example.passed,
        is_terminal=example.is_terminal,
        reference=None if reference is None else reference[:MAX_CHARACTERS],
        wanted=lost or ((example.expected[:MAX_CHARACTERS],) if example.expected else ()),
        compared=compared,
        fields=_collect_fields(example),
        tool_calls=example.tool_calls,
        expected_tool_calls=example.expected_tool_calls,
        findings=example.findings,
    )


def _find_right_route(example: StepExample) -> str | None:
    """What a step that chose a wrong route should have answered."""
    answers = [finding.expected for finding in example.findings if finding.predicate == "route"]
    return answers[0] if answers and isinstance(answers[0], str) else None


def _collect_fields(example: StepExample) -> Mapping[str, tuple[str, ...]]:
    """The fields that the step received: in its input, and from its tools."""
    results = [call["result"] for call in example.tool_calls if isinstance(call, dict) and call.get("result")]
    from_tools = [read_fields(json_text(result)[:MAX_CHARACTERS]) for result in results]
    return {
        name: values
        for fields in (*reversed(from_tools), read_fields(example.input[:MAX_CHARACTERS]))
        for name, values in fields.items()
    }


def _read_lost_text(finding: Finding) -> str:
    """The text that a finding misses; a violated rule has none."""
    if finding.kind not in ("missing", "wrong") or finding.expected is None:
        return ""
    if finding.predicate.startswith("tool"):
        return ""
    if isinstance(finding.expected, list | tuple):
        return " ".join(map(json_text, finding.expected))
    return json_text(finding.expected)
