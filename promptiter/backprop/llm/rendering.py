"""Rendering of steps, values, findings and examples as quotes of a prompt, and literals to cut long texts around."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import orjson

from promptiter.backprop.llm.truncation import PromptSection, Quote
from promptiter.backprop.step_text import json_leaves
from promptiter.evaluation.metrics.metric import summarize_findings
from promptiter.evaluation.score import Finding
from promptiter.profile import SurfaceChange
from promptiter.stages.optimizer import Rejection, StepExample
from promptiter.stages.routes import MissedRoute
from promptiter.structure import Surface
from traces import Snapshot, Step, ToolCall
from traces.model import Json, escape_surrogates

SHORTEST_LITERAL, LONGEST_LITERAL, MOST_LITERALS = 2, 200, 50
"""Shorter literals occur too often, longer ones hardly ever."""

MOST_OCCURRENCES = 3
"""A word that a text has at most this often leads to a passage of it."""

USER = "the user"
EARLIER = "earlier conversation"
FIXED_NAME = "fixed"
"""How prompts call surfaces that may not be blamed."""

MOST_FAILING_WITH = 2
"""Maximum number of cases shown that failed with a rejected value."""

SHORTEST_REFERENCE = 20
"""A text that is shown twice is replaced by a reference if it has at least this many characters."""


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
    if snapshot.text is not None and not snapshot.blobs:
        return snapshot.text
    value = snapshot.data if snapshot.text is None else snapshot.text
    shown = [] if value is None else [render_value(value)]
    if not snapshot.blobs:
        return shown[0] if shown else ""
    return "\n".join([*shown, *(f"[{blob.media_type}, {blob.size:,} bytes, not shown]" for blob in snapshot.blobs)])


@lru_cache(maxsize=1024)
def name_node(node_id: str) -> tuple[tuple[str, ...], tuple[Quote, ...]]:
    """The id of a node as part of a heading; if it is not a plain name, it is quoted as data instead."""
    return ((node_id,), ()) if _PLAIN_NAME.fullmatch(node_id) else ((), (Quote("node", node_id),))


_PLAIN_NAME = re.compile(r"[A-Za-z_][\w~-]{0,39}(?:/[\w~-]{1,40}){0,4}", re.ASCII)
"""A node is named by its developers, but its name may come from a trace: no spaces, so that it cannot be a sentence."""


def refer_to_known(text: str, known: Mapping[str, str]) -> str:
    """Replace what is shown elsewhere in the prompt by its name, such as `[output of T1]`, the longest first."""
    long = [(name, part) for name, part in known.items() if len(part) >= SHORTEST_REFERENCE]
    for name, part in sorted(long, key=lambda pair: (-len(pair[1]), pair[0])):
        named = f"[what {name} said]" if name == USER else f"[output of {name}]"
        text = text.replace(part, named)
        if '"' in part or "\\" in part or not part.isprintable():
            text = text.replace(orjson.dumps(escape_surrogates(part)).decode()[1:-1], named)
    return text


def build_step_section(step: Step, known: Mapping[str, str]) -> PromptSection:
    """Build the section of the step that a prompt is about. `known` texts are shown elsewhere, by name."""
    name, unfit = name_node(step.node_id)
    given = render_snapshot(step.input)
    same = next((each for each, text in known.items() if text and text == given), "")
    source = f"; its input is {'what the user said' if same == USER else f'the output of {same}'}" if same else ""
    quotes = list(unfit)
    if step.error is not None:
        quotes.extend(quote_optional("error", str(step.error)))
    if not same or step.input.blobs:
        quotes.append(Quote("input", refer_to_known(given, known)))
    quotes.append(Quote("output", render_snapshot(step.output)))
    title = f"# The step{f': node {name[0]}' if name else ''} ({step.kind}){source}"
    return PromptSection(title=title, quotes=tuple(quotes), weight=10)


def render_call(call: ToolCall) -> str:
    given = f"error: {call.error}" if call.error is not None else render_value(call.result)
    return f"{call.name}({render_value(call.arguments)})\n{given}"


def quote_surface(surface: Surface, *, name: str, call_seen: ToolCall | None = None) -> Quote:
    """Quote the id of a surface, what is known about it, and after an empty line its value."""
    seen = [f"a call seen elsewhere: {' '.join(render_call(call_seen).split())}"] if call_seen else []
    known = "\n".join([surface.id, *describe_surface(surface), *seen])
    return Quote(name, f"{known}\n\n{render_value(surface.value)}")


def describe_surface(surface: Surface) -> list[str]:
    """What a surface is for and the arguments of a tool, one line each."""
    purpose = " ".join(surface.description.split())
    word = "docstring" if surface.type == "tool" else "what it is for"
    return [
        *([f"arguments: {render_value(dict(surface.arguments))}"] if surface.arguments else []),
        *([f"{word}: {purpose}"] if purpose else []),
    ]


def is_worth_showing(surface: Surface) -> bool:
    """Whether a surface that stays as it is explains anything: not the name of a model, nor an empty text."""
    return surface.type != "model" and surface.value not in ("", [], None)


def render_rejection(rejection: Rejection, surface: Surface) -> str:
    """Render the reason of a rejection and the difference from the current value."""
    change = SurfaceChange(surface.id, surface.value, rejection.value).as_text()
    return f"why: {rejection.reason}\n\n{change or render_value(rejection.value)}"


def quote_failures_with(rejection: Rejection, number: int) -> tuple[Quote, ...]:
    """Quote some train cases that failed with a rejected value: what the step got and gave, and why that is wrong."""
    return tuple(
        Quote(f"with rejected {number}, case {place}", render_failure(example))
        for place, example in enumerate(rejection.failing[:MOST_FAILING_WITH], 1)
    )


def render_failure(example: StepExample) -> str:
    """Render a failing example in one text."""
    why = [*example.reasons, *_list_unshown_findings(example)]
    parts = {
        EARLIER: example.earlier,
        "user": example.case_input if example.case_input != example.input else None,
        "input": example.input,
        "output": example.output,
        "answer of the whole run": example.answer,
        "expected": example.expected,
        "why it failed": "\n".join(why),
    }
    return "\n".join(f"{name}: {text}" for name, text in parts.items() if text)


def build_example_sections(kind: str, examples: Sequence[StepExample], *, weight: int) -> Iterator[PromptSection]:
    """Build one section per example, so that a long one does not crowd out the others, and none is shown in pieces."""
    for number, example in enumerate(examples, 1):
        asked = example.case_input if example.case_input != example.input else None
        expected_calls = (
            None if example.expected_tool_calls is None else render_value(list(example.expected_tool_calls))
        )
        of_run = "" if example.is_terminal else " of the whole run"
        why = [*example.reasons, *_list_unshown_findings(example)]
        quotes = (
            *quote_optional(EARLIER, example.earlier),
            *quote_optional("user", asked),
            Quote("step input", refer_to_known(example.input, {USER: asked or ""})),
            Quote("step output", example.output),
            *quote_optional("answer of the whole run", example.answer),
            *quote_optional(f"expected answer{of_run}" if of_run else "expected", example.expected),
            *quote_optional("why it failed", "\n".join(why)),
            *quote_optional(f"expected tool calls{of_run}", expected_calls),
            *quote_numbered("tool call", map(render_value, example.tool_calls)),
        )
        yield PromptSection(title=f"# {kind} example {number}", quotes=quotes, weight=weight, needs_all=True)


def _list_unshown_findings(example: StepExample) -> list[str]:
    """The findings that the reasons do not mention."""
    reasons = "\n".join(example.reasons)
    return [text for text in describe_findings(example.findings) if text not in reasons]


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


def collect_literals(findings: Iterable[Finding], others: Iterable[Json] = ()) -> tuple[str, ...]:
    """Texts and numbers to look for: expected and actual values of the findings, then the others."""
    values = [value for finding in findings for value in (finding.expected, finding.actual)]
    found = dict.fromkeys(text.strip() for text in _iterate_texts_and_numbers([*values, *others]))
    return tuple(text for text in found if SHORTEST_LITERAL <= len(text) <= LONGEST_LITERAL)[:MOST_LITERALS]


def collect_rare_words(text: str, sources: Iterable[str]) -> tuple[str, ...]:
    """The words of the sources that are rare in a text, the rarest first: they lead to the passages they are about."""
    counts = Counter(_WORD.findall(text))
    words = dict.fromkeys(word for source in sources for word in _WORD.findall(source))
    return tuple(
        sorted((word for word in words if 0 < counts[word] <= MOST_OCCURRENCES), key=lambda word: counts[word])
    )


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


_WORD = re.compile(r"\w{3,}")
