"""The prompts of critic and applier. Their rules are files, which a user may replace; the form of the answer is not.

`critic.md` and `applier.md` are next to this module. Everything recorded is quoted as data, as in the other prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from promptiter.backprop.llm.prompts import (
    DATA_RULE,
    MAX_PROMPT_TOKENS,
    build_surface_section,
    quote_limits,
    quote_value,
)
from promptiter.backprop.llm.reflection_prompt import build_case_section
from promptiter.backprop.llm.rendering import build_optional_section, quote_optional, quote_surface
from promptiter.backprop.llm.reports import build_criteria_section
from promptiter.backprop.llm.truncation import PromptSection, Quote, approximate_tokens, compose, compute_room
from promptiter.llm.messages import Message
from promptiter.stages.diagnosis import ApplyRequest, DiagnoseRequest, Diagnosis, RejectedTrial
from promptiter.structure import Surface

DIAGNOSIS_FORM = """\
Answer with one JSON object: {"failing_pattern": "...", "root_cause_hypothesis": "...", "suggested_change_direction": \
"...", "confidence": 0.8, "citations": ["case id", ...], "avoid": ["...", ...]}. The confidence is from 0 to 1."""

EDIT_FORM = """\
Answer with one JSON object: {"edit_type": "insert" | "replace" | "delete" | "restructure", "rationale": "...", \
"new_text": "...", "diff_summary": "..."}. new_text is the complete new text, bare: no marks, no code fence."""


@cache
def read_rules(name: Literal["critic", "applier"]) -> str:
    """The packaged rules of a prompt."""
    return Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8").strip()


def render_diagnose(
    request: DiagnoseRequest, *, rules: str | None = None, limit: int = MAX_PROMPT_TOKENS
) -> tuple[Message, ...]:
    """Render the prompt that asks what is wrong with a text."""
    system = _build_system(rules or read_rules("critic"), DIAGNOSIS_FORM)
    sections = [
        build_surface_section(request.surface, node_description=request.node_description),
        *build_criteria_section(request.criteria),
        *(build_case_section(each, number) for number, each in enumerate(request.failing, 1)),
        *_build_shared_sections(request.rejected, request.together),
    ]
    return _render(system, request.surface, sections, limit)


def render_apply(
    request: ApplyRequest, *, rules: str | None = None, limit: int = MAX_PROMPT_TOKENS
) -> tuple[Message, ...]:
    """Render the prompt that asks for the edit of a text."""
    system = _build_system(rules or read_rules("applier"), EDIT_FORM)
    sections = [
        build_surface_section(request.surface),
        *build_optional_section("# Limits of a new text", quote_limits(request.surface.limits, {}), weight=8),
        PromptSection(title="# The diagnosis", quotes=tuple(_quote_diagnosis(request.diagnosis)), weight=12),
        *_build_shared_sections(request.rejected, request.together),
    ]
    return _render(system, request.surface, sections, limit)


def _build_system(rules: str, form: str) -> str:
    return f"{rules.strip()}\n\n{DATA_RULE}\n\n{form}"


def _render(system: str, surface: Surface, sections: list[PromptSection], limit: int) -> tuple[Message, ...]:
    first = f"# The current text\n{quote_value(surface).render()}\n\n"
    room = compute_room(system, limit=limit) - approximate_tokens(first)
    return Message("system", system), Message("user", first + compose(sections, room))


def _build_shared_sections(rejected: Sequence[RejectedTrial], together: Sequence[Surface]) -> list[PromptSection]:
    tried = [
        PromptSection(
            title=f"# Rejected before ({number})",
            quotes=(
                *_quote_diagnosis(each.diagnosis),
                *quote_optional("text that was tried", each.text),
                Quote("why it was rejected", each.reason),
            ),
            weight=5,
        )
        for number, each in enumerate(rejected, 1)
    ]
    others = tuple(quote_surface(each, name="text") for each in together)
    return [*tried, *build_optional_section("# Other texts that change with it", others, weight=2)]


def _quote_diagnosis(diagnosis: Diagnosis) -> list[Quote]:
    return [
        Quote("failing pattern", diagnosis.failing_pattern),
        *quote_optional("root cause", diagnosis.root_cause_hypothesis),
        *quote_optional("direction of the change", diagnosis.suggested_change_direction),
        *quote_optional("cases", ", ".join(diagnosis.citations)),
        *quote_optional("avoid", "\n".join(f"- {each}" for each in diagnosis.avoid)),
    ]
