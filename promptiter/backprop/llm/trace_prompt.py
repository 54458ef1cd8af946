"""TracePrompt: the prompt of LLMAttributor, one or more failed runs with steps T1, T2, … and surfaces S1, S2, …

It shows the steps between a loss and a target surface, each once, in the order of the trace, and the surfaces that they
read. The rules, surfaces and metrics, which all runs share, come first and are paid once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from promptiter.backprop.llm.blame_rules import CONFIDENCE, GRADES, MISSING_TOOL, TO_A_SURFACE, WHOLE_TRACE
from promptiter.backprop.llm.prompts import DATA_RULE
from promptiter.backprop.llm.rendering import (
    FIXED_NAME,
    collect_literals,
    is_worth_showing,
    quote_surface,
)
from promptiter.backprop.llm.reports import build_criteria_section, collect_criteria, collect_findings
from promptiter.backprop.llm.shown_run import ShownRun
from promptiter.backprop.llm.truncation import PromptSection, compose, compute_room, count_prompt_tokens
from promptiter.backprop.propagate import TraceView
from promptiter.backprop.tool_calls import FirstCalls
from promptiter.llm.messages import Message
from promptiter.structure import Surface
from traces import ToolCall

_RULES = WHOLE_TRACE.format(
    to_a_surface=TO_A_SURFACE,
    grades=GRADES.format(confidence=CONFIDENCE),
    data_rule=DATA_RULE,
    missing_tool=MISSING_TOOL,
)

RULE_TOKENS = count_prompt_tokens([_RULES, ""])
"""The number of tokens of the rules, which every prompt has."""


@dataclass(frozen=True)  # without slots, so that sections are built once
class TracePrompt:
    """Some runs, and the surfaces that may be blamed in them, by alias. Aliases are numbered through all runs."""

    runs: tuple[ShownRun, ...]
    surfaces: Mapping[str, str]

    @classmethod
    def of(cls, *views: TraceView) -> TracePrompt:
        runs: list[ShownRun] = []
        first_step = first_report = 1
        for view in views:
            run = ShownRun.of(view, first_step=first_step, first_report=first_report)
            first_step, first_report = first_step + len(run.steps), first_report + len(run.reports)
            runs.append(run)
        blamable = sorted({surface_id for run in runs for surface_id in run.blamable})
        return cls(tuple(runs), {f"S{number}": surface_id for number, surface_id in enumerate(blamable, 1)})

    @property
    def tokens(self) -> int:
        """The number of tokens of the prompt before truncation."""
        return RULE_TOKENS + sum(section.size for section in self._sections)

    def measure(self) -> tuple[dict[str, int], int]:
        """The numbers of tokens of the surfaces, by id, and of everything else but the rules."""
        section, *others = self._sections
        surfaces = dict(zip(self._list_surfaces(), (quote.size for quote in section.quotes), strict=True))
        return surfaces, sum(each.size for each in others)

    def render(self, *, limit: int) -> tuple[Message, ...]:
        """Render the runs in at most `limit` tokens, cut around expected and actual values."""
        found = [finding for run in self.runs for finding in collect_findings(run.reports.values())]
        around = collect_literals(found, [run.view.expected for run in self.runs])
        room = compute_room(_RULES, limit=limit)
        content = compose(self._keep_steps(room)._sections, room, around=around)
        return Message("system", _RULES), Message("user", content)

    def _keep_steps(self, room: int) -> TracePrompt:
        """The same prompt, or one with fewer steps, so that each has some room beside what is shown only once."""
        total = sum(section.size for section in self._sections)
        if total <= room:
            return self
        steps = [section for run in self.runs for section in run.build_step_sections(self._named)]
        once = total - sum(section.size for section in steps)
        left, needed = room - min(once, room // 2), sum(section.least for section in steps)
        if needed <= left:
            return self
        return replace(self, runs=tuple(run.keep_steps(len(run.steps) * left // needed) for run in self.runs))

    @property
    def _named(self) -> dict[str, str]:
        """The aliases of the surfaces by id."""
        return {surface_id: alias for alias, surface_id in self.surfaces.items()}

    @cached_property
    def _sections(self) -> list[PromptSection]:
        named = self._named
        losses = [loss for run in self.runs for loss in run.view.split_losses]
        return [
            self._build_surface_section(named),
            *build_criteria_section(collect_criteria(losses)),
            *(section for number, run in enumerate(self.runs, 1) for section in run.build_sections(number, named)),
        ]

    def _build_surface_section(self, named: Mapping[str, str]) -> PromptSection:
        surfaces = self._list_surfaces()
        seen = self._find_calls_seen(surfaces.values())
        quotes = tuple(
            quote_surface(surface, name=named.get(surface_id, FIXED_NAME), call_seen=seen.get(surface_id))
            for surface_id, surface in surfaces.items()
        )
        return PromptSection(title="# The surfaces", quotes=quotes, weight=6)

    def _find_calls_seen(self, surfaces: Iterable[Surface]) -> dict[str, ToolCall]:
        """A call of each tool that none of the shown runs called, from other runs."""
        requests = [run.view.request for run in self.runs]
        shown = FirstCalls(request.trace for request in requests)
        tools = [each for each in surfaces if each.type == "tool" and not shown.find(each)]
        peers = {id(peer.trace): peer.trace for request in requests for peer in request.peers} if tools else {}
        others = FirstCalls(peers.values())
        return {each.id: call for each in tools if (call := others.find(each))}

    def _list_surfaces(self) -> dict[str, Surface]:
        """The surfaces to show, by id; those that may be blamed first."""
        steps = ((run.view, step) for run in self.runs for step in run.steps.values())
        read = {surface.id: surface for view, step in steps for surface in view.surfaces_of(step)}
        blamable = set(self.surfaces.values())
        shown = [each for each in read if each in blamable or is_worth_showing(read[each])]
        return {each: read[each] for each in sorted(shown, key=lambda each: (each not in blamable, each))}
