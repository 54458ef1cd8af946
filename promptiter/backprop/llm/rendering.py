"""Steps, values, findings and examples as the quotes of a prompt, and the literals that long texts are cut around."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import orjson

from promptiter.backprop.llm.truncation import Quote, Section
from promptiter.backprop.step_text import json_leaves
from promptiter.evaluation.metrics.metric import describe_findings
from promptiter.evaluation.score import Finding
from promptiter.profile import SurfaceChange
from promptiter.stages.contracts import BackwardRequest, Rejection, StepExample
from promptiter.stages.losses import Loss
from promptiter.structure import Surface
from traces import Snapshot, Step, ToolCall
from traces.model import Json

SHORTEST_LITERAL, LONGEST_LITERAL, MOST_LITERALS = 2, 200, 50
"""What is shorter is found everywhere, what is longer nowhere."""


def value_text(value: Json) -> str:
    """Text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # what a tool gives back need not be JSON
        return repr(value)


def snapshot_text(snapshot: Snapshot) -> str:
    """What went into or came out of a step; of what is kept elsewhere, that it is."""
    kept = [f"[{blob.media_type}, {blob.size:,} bytes, not shown]" for blob in snapshot.blobs]
    if snapshot.text is not None:
        return "\n".join([snapshot.text, *kept])
    return "\n".join([*([value_text(snapshot.data)] if snapshot.data is not None else []), *kept])


def result_text(step: Step) -> str:
    """What a predecessor gave, and by which node."""
    failed = f", failed: {step.error}" if step.error is not None else ""
    return f"node {step.node_id}{failed}\n\n{snapshot_text(step.output)}"


def step_quotes(step: Step, *, has_input: bool = True) -> tuple[Quote, ...]:
    """What a step was, was given and gave. Without `has_input` its input stands elsewhere."""
    return (
        Quote("node", f"{step.node_id} ({step.kind})"),
        *optional_quote("error", str(step.error) if step.error is not None else None),
        *([Quote("input", snapshot_text(step.input))] if has_input else []),
        Quote("output", snapshot_text(step.output)),
    )


def call_text(call: ToolCall) -> str:
    given = f"error: {call.error}" if call.error is not None else value_text(call.result)
    return f"{call.name}({value_text(call.arguments)})\n{given}"


def surface_quote(surface: Surface, *, name: str) -> Quote:
    return Quote(name, f"{surface.id}\n\n{value_text(surface.value)}")


def rejection_text(rejection: Rejection, surface: Surface) -> str:
    """Why a value was not kept, and how it differs from the current one."""
    change = SurfaceChange(surface.id, surface.value, rejection.value).as_text()
    return f"why: {rejection.reason}\n\n{change or value_text(rejection.value)}"


def example_sections(kind: str, examples: Sequence[StepExample], *, weight: int) -> Iterator[Section]:
    """Each example as a section of its own, so that a long one does not crowd out the others."""
    for number, example in enumerate(examples, 1):
        asked = example.case_input if example.case_input != example.input else None
        expected_calls = None if example.expected_tool_calls is None else value_text(list(example.expected_tool_calls))
        quotes = (
            *optional_quote("user", asked),
            Quote("step input", example.input),
            Quote("step output", example.output),
            *optional_quote("expected" if example.is_terminal else "expected of the whole run", example.expected),
            *optional_quote("findings", "\n".join(findings_in_words(example.findings))),
            *optional_quote("expected tool calls", expected_calls),
            *numbered("tool call", map(value_text, example.tool_calls)),
        )
        yield Section(title=f"# {kind} example {number}", quotes=quotes, weight=weight)


def optional_quote(name: str, text: str | None) -> tuple[Quote, ...]:
    return (Quote(name, text),) if text else ()


def optional_section(title: str, quotes: tuple[Quote, ...], *, weight: int) -> list[Section]:
    return [Section(title=title, quotes=quotes, weight=weight)] if quotes else []


def numbered(name: str, texts: Iterable[str]) -> tuple[Quote, ...]:
    return tuple(Quote(f"{name} {number}", text) for number, text in enumerate(texts, 1))


def findings_in_words(findings: Iterable[Finding]) -> list[str]:
    return list(dict.fromkeys(describe_findings([finding]) for finding in findings))


def incoming_findings(request: BackwardRequest) -> tuple[Finding, ...]:
    """The findings of all packets, each once: they travel on with whatever the step answers."""
    return each_once(finding for packet in request.incoming for finding in packet.findings)


def findings_of(losses: Iterable[Loss]) -> tuple[Finding, ...]:
    """What the metrics found, each once."""
    return each_once(finding for loss in losses for finding in loss.findings)


def each_once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    found = {repr(finding): finding for finding in findings}
    return tuple(found[key] for key in sorted(found))


def literals(findings: Iterable[Finding], others: Iterable[Json] = ()) -> tuple[str, ...]:
    """Texts and numbers worth looking for: what was expected and what came instead, then the others."""
    values = [value for finding in findings for value in (finding.expected, finding.actual)]
    found = dict.fromkeys(text.strip() for text in _texts_and_numbers_in([*values, *others]))
    return tuple(text for text in found if SHORTEST_LITERAL <= len(text) <= LONGEST_LITERAL)[:MOST_LITERALS]


def wrong_values(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The literals that came instead of what was expected."""
    return literals((), [finding.actual for finding in findings])


def is_suspect(step: Step, wrong: Iterable[str]) -> bool:
    """Whether a step failed, or gave what was found wrong."""
    output = snapshot_text(step.output)
    return step.error is not None or any(literal in output for literal in wrong)


def _texts_and_numbers_in(value: Json) -> Iterator[str]:
    for _, leaf in json_leaves(value):
        if isinstance(leaf, str | int | float) and not isinstance(leaf, bool):
            yield str(leaf)
