"""Rendering of steps, values, findings and examples as quotes of a prompt, and literals to cut long texts around."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson

from promptiter.backprop.llm.truncation import PromptSection, Quote
from promptiter.backprop.step_text import json_leaves
from promptiter.evaluation.metrics.metric import summarize_findings
from promptiter.evaluation.score import Finding
from promptiter.profile import SurfaceChange
from promptiter.stages.contracts import GradientPacket, Rejection, StepExample
from promptiter.stages.losses import Loss
from promptiter.stages.routes import MissedRoute
from promptiter.structure import Surface
from traces import Snapshot, Step, ToolCall
from traces.model import Json

SHORTEST_LITERAL, LONGEST_LITERAL, MOST_LITERALS = 2, 200, 50
"""Shorter literals occur too often, longer ones hardly ever."""


def render_value(value: Json) -> str:
    """Render text unchanged, anything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # a tool may return something that is not JSON
        return repr(value)


def render_snapshot(snapshot: Snapshot) -> str:
    """Render the input or output of a step; blobs are only named."""
    kept = [f"[{blob.media_type}, {blob.size:,} bytes, not shown]" for blob in snapshot.blobs]
    if snapshot.text is not None:
        return "\n".join([snapshot.text, *kept])
    return "\n".join([*([render_value(snapshot.data)] if snapshot.data is not None else []), *kept])


def render_result(step: Step) -> str:
    """Render the node and the output of a predecessor."""
    failed = f", failed: {step.error}" if step.error is not None else ""
    return f"node {step.node_id}{failed}\n\n{render_snapshot(step.output)}"


def quote_step(step: Step, *, has_input: bool = True) -> tuple[Quote, ...]:
    """Quote the node, error, input and output of a step. Without `has_input` its input is shown elsewhere."""
    return (
        Quote("node", f"{step.node_id} ({step.kind})"),
        *quote_optional("error", str(step.error) if step.error is not None else None),
        *([Quote("input", render_snapshot(step.input))] if has_input else []),
        Quote("output", render_snapshot(step.output)),
    )


def render_call(call: ToolCall) -> str:
    given = f"error: {call.error}" if call.error is not None else render_value(call.result)
    return f"{call.name}({render_value(call.arguments)})\n{given}"


def quote_surface(surface: Surface, *, name: str) -> Quote:
    return Quote(name, f"{surface.id}\n\n{render_value(surface.value)}")


def render_rejection(rejection: Rejection, surface: Surface) -> str:
    """Render the reason of a rejection and the difference from the current value."""
    change = SurfaceChange(surface.id, surface.value, rejection.value).as_text()
    return f"why: {rejection.reason}\n\n{change or render_value(rejection.value)}"


def build_example_sections(kind: str, examples: Sequence[StepExample], *, weight: int) -> Iterator[PromptSection]:
    """Build one section per example, so that a long one does not crowd out the others."""
    for number, example in enumerate(examples, 1):
        asked = example.case_input if example.case_input != example.input else None
        expected_calls = (
            None if example.expected_tool_calls is None else render_value(list(example.expected_tool_calls))
        )
        of_run = "" if example.is_terminal else " of the whole run"
        quotes = (
            *quote_optional("user", asked),
            Quote("step input", example.input),
            Quote("step output", example.output),
            *quote_optional(f"expected{of_run}", example.expected),
            *quote_optional("findings", "\n".join(describe_findings(example.findings))),
            *quote_optional(f"expected tool calls{of_run}", expected_calls),
            *quote_numbered("tool call", map(render_value, example.tool_calls)),
        )
        yield PromptSection(title=f"# {kind} example {number}", quotes=quotes, weight=weight)


def quote_optional(name: str, text: str | None) -> tuple[Quote, ...]:
    return (Quote(name, text),) if text else ()


def build_optional_section(title: str, quotes: tuple[Quote, ...], *, weight: int) -> list[PromptSection]:
    return [PromptSection(title=title, quotes=quotes, weight=weight)] if quotes else []


def quote_numbered(name: str, texts: Iterable[str]) -> tuple[Quote, ...]:
    return tuple(Quote(f"{name} {number}", text) for number, text in enumerate(texts, 1))


def describe_routes(routes: Sequence[MissedRoute], *, names: Mapping[str, str]) -> list[str]:
    """Describe what else steps could have led to, one line each; `names` has the aliases of the steps by id."""
    lines = []
    for step_id in dict.fromkeys(route.step.id for route in routes if route.step.id in names):
        missed = [route for route in routes if route.step.id == step_id]
        others = "; ".join(f"{route.node_id} (on {' or '.join(map(repr, route.words))})" for route in missed)
        lines.append(f"{names[step_id]} led to {', '.join(missed[0].taken)}. It could have led to {others}.")
    return lines


def describe_absent_owners(owners: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        f"The expected tool {tool} belongs to {' and '.join(nodes)}, which did not run."
        for tool, nodes in owners.items()
    ]


def describe_findings(findings: Iterable[Finding]) -> list[str]:
    return list(dict.fromkeys(summarize_findings([finding]) for finding in findings))


def collect_findings(reports: Iterable[Loss | GradientPacket]) -> tuple[Finding, ...]:
    """The findings of all losses or packets, each once."""
    found = {repr(finding): finding for report in reports for finding in report.findings}
    return tuple(found[key] for key in sorted(found))


def collect_literals(findings: Iterable[Finding], others: Iterable[Json] = ()) -> tuple[str, ...]:
    """Texts and numbers to look for: expected and actual values of the findings, then the others."""
    values = [value for finding in findings for value in (finding.expected, finding.actual)]
    found = dict.fromkeys(text.strip() for text in _iterate_texts_and_numbers([*values, *others]))
    return tuple(text for text in found if SHORTEST_LITERAL <= len(text) <= LONGEST_LITERAL)[:MOST_LITERALS]


def collect_wrong_values(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The actual values that were found instead of the expected ones."""
    return collect_literals((), [finding.actual for finding in findings])


def is_suspect(step: Step, wrong: Iterable[str]) -> bool:
    """Whether a step failed, or its output contains a wrong value."""
    output = render_snapshot(step.output)
    return step.error is not None or any(literal in output for literal in wrong)


def _iterate_texts_and_numbers(value: Json) -> Iterator[str]:
    for _, leaf in json_leaves(value):
        if isinstance(leaf, str | int | float) and not isinstance(leaf, bool):
            yield str(leaf)
