"""The prompt of a reflection: one component of an agent, and cases of a mini-batch that ran with it.

Everything recorded is quoted as data, as in the prompts of the other stages.
"""

from __future__ import annotations

from promptiter.backprop.llm.prompts import (
    DATA_RULE,
    MAX_PROMPT_TOKENS,
    build_signal_section,
    build_surface_section,
    quote_limits,
    quote_value,
    select_rejections,
)
from promptiter.backprop.llm.rendering import (
    build_optional_section,
    quote_numbered,
    quote_optional,
    quote_surface,
    render_rejection,
)
from promptiter.backprop.llm.reports import build_criteria_section
from promptiter.backprop.llm.truncation import PromptSection, Quote, approximate_tokens, compose, compute_room
from promptiter.llm.messages import Message
from promptiter.stages.reflection import CaseRecord, ReflectRequest, TurnRecord

REFLECT = f"""\
You improve one component of an agent: a text that it works with, or a setting. You see its current value, and cases \
that ran with it: what the user said, what was expected, what the agent answered, its tool calls, the verdict of each \
metric, and the steps of the component's own node where they were recorded.

- Read all cases and verdicts. Find what the component should have said so that the failed cases pass and the passed \
ones stay so, and write the complete new text.
- Write rules that help on new inputs. Nothing of a case may be copied into the text: no names, numbers, ids, answers \
or phrases of the cases. A fact belongs there only if many cases share it and new inputs will need it.
- A failure may have its cause elsewhere. Leave the work of other components to them, and keep what they depend on: \
the content and form of this component's output.
- Keep every limit, placeholder, and what works. The text is bare: no marks, no code fence, no remark before it.
- A setting, such as a number, a switch or a model, gets another value within its limits, as plain JSON.

{DATA_RULE}

Answer with one JSON object; the reason says in one or two sentences what you changed and why it helps, the value is \
the complete new text, or the new setting: {{"reason": "...", "value": "..."}}"""


def render_reflect(request: ReflectRequest, *, limit: int = MAX_PROMPT_TOKENS) -> tuple[Message, ...]:
    """Render the prompt that asks for the new text of one component."""
    surface = request.surface
    first = f"# The current value\n{quote_value(surface).render()}\n\n"
    sections = [
        build_surface_section(surface),
        *build_optional_section(
            "# Limits of a new value",
            quote_limits(surface.limits, request.prices, max_changed_lines=request.max_changed_lines),
            weight=8,
        ),
        *([] if request.signal is None else [build_signal_section(request.signal)]),
        *build_criteria_section(request.criteria),
        *(build_case_section(each, number) for number, each in enumerate(request.records, 1)),
        *build_optional_section(
            "# What was rejected before, the latest first. Write something else",
            quote_numbered(
                "rejected", (render_rejection(each, surface) for each in select_rejections(request.rejected))
            ),
            weight=6,
        ),
        *build_optional_section(
            "# Other active components",
            tuple(quote_surface(each, name="component") for each in request.others),
            weight=2,
        ),
    ]
    room = compute_room(REFLECT, limit=limit) - approximate_tokens(first)
    return Message("system", REFLECT), Message("user", first + compose(sections, room))


def build_case_section(record: CaseRecord, number: int) -> PromptSection:
    """Build the section of one case: its turns, verdicts and best responses."""
    quotes = [Quote("case_id", record.case_id)]
    for place, turn in enumerate(record.turns, 1):
        quotes += _quote_turn(turn, f"turn {place} " if len(record.turns) > 1 else "")
    quotes += quote_optional("verdict on the whole case", "\n".join(record.overall))
    best = (f"score {score:.4f}\n{answer}" for score, answer in record.history)
    quotes += quote_numbered("best response so far", best)
    return PromptSection(title=f"# Case {number}, score {record.score:.4f}", quotes=tuple(quotes), weight=6)


def _quote_turn(turn: TurnRecord, prefix: str) -> list[Quote]:
    steps = [
        Quote(f"{prefix}{name} {number}", text)
        for number, step in enumerate(turn.steps, 1)
        for name, text in (("step input", step.input), ("step error", step.error), ("step output", step.output))
        if text
    ]
    return [
        Quote(f"{prefix}user", turn.user),
        *quote_optional(f"{prefix}expected", turn.expected),
        Quote(f"{prefix}agent response", turn.response),
        *quote_optional(f"{prefix}tool trace", "\n".join(f"- {call}" for call in turn.tools)),
        *quote_optional(f"{prefix}verdict", "\n".join(turn.verdict)),
        *steps,
    ]
