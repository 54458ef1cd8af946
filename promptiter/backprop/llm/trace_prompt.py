"""TracePrompt: the prompt of LLMAttributor, one whole failed trace with steps T1, T2, … and surfaces S1, S2, …

It shows the steps between a loss and a target surface, each once, in the order of the trace, and the surfaces that they
read. Texts are not repeated: if the input of a step is the output of another, the prompt only says so. The rules and
surfaces, which all cases of a round share, come first, so that a provider's cache can serve them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from promptiter.backprop.llm.prompts import DATA_RULE, EXPECTED, GRADES, ROUTES, TO_A_SURFACE, WHOLE_TRACE
from promptiter.backprop.llm.rendering import (
    build_optional_section,
    collect_findings,
    collect_literals,
    collect_wrong_values,
    describe_absent_owners,
    describe_findings,
    describe_routes,
    is_suspect,
    quote_numbered,
    quote_optional,
    quote_step,
    quote_surface,
    render_call,
    render_snapshot,
)
from promptiter.backprop.llm.truncation import PromptSection, Quote, compose, compute_room, count_prompt_tokens
from promptiter.backprop.propagate import TraceView
from promptiter.llm.messages import Message
from promptiter.stages.losses import Loss
from promptiter.structure import Surface
from promptiter.wording import join_names
from traces import Step

MOST_STEPS = 500
"""Maximum number of steps shown: providers accept schemas of about a thousand names."""

MOST_LISTED = 12
"""Maximum number of aliases listed in a heading."""

_RULES = WHOLE_TRACE.format(to_a_surface=TO_A_SURFACE, grades=GRADES, data_rule=DATA_RULE)


@dataclass(frozen=True, slots=True)
class TracePrompt:
    """The steps of a walk and their blamable surfaces, by alias. `left_out` steps are not shown."""

    view: TraceView
    steps: Mapping[str, Step]
    surfaces: Mapping[str, str]
    left_out: int

    @classmethod
    def of(cls, view: TraceView) -> TracePrompt:
        steps = [step for step in view.request.trace.steps if step.id in view.predecessors]
        shown = _select_steps(steps, view) if len(steps) > MOST_STEPS else steps
        blamable = sorted({surface_id for step in shown for surface_id in view.blamable[step.id]})
        return cls(
            view,
            steps={f"T{number}": step for number, step in enumerate(shown, 1)},
            surfaces={f"S{number}": surface_id for number, surface_id in enumerate(blamable, 1)},
            left_out=len(steps) - len(shown),
        )

    @property
    def blamable_steps(self) -> dict[str, Step]:
        """The steps with blamable surfaces, by alias."""
        return {alias: step for alias, step in self.steps.items() if self.view.blamable[step.id]}

    @property
    def tokens(self) -> int:
        """The number of tokens of the prompt before truncation."""
        return count_prompt_tokens([_RULES, ""]) + sum(section.size for section in self._build_sections())

    def render(self, *, limit: int) -> tuple[Message, ...]:
        """Render the trace in at most `limit` tokens, cut around expected and actual values."""
        around = collect_literals(collect_findings(self.view.request.case_loss.losses), [self.view.expected])
        content = compose(self._build_sections(), compute_room(_RULES, limit=limit), around=around)
        return Message("system", _RULES), Message("user", content)

    def _build_sections(self) -> list[PromptSection]:
        case = self.view.request.case_loss
        aliases = {step.id: alias for alias, step in self.steps.items()}
        reports = _quote_reports(case.losses, aliases)
        shown = "\n".join(report.text for report in reports)
        unshown = [each for each in describe_findings(collect_findings(case.losses)) if each not in shown]
        named = {surface_id: alias for alias, surface_id in self.surfaces.items()}
        return [
            self._build_surface_section(named),
            *build_optional_section("# What the user said", quote_optional("user", case.input), weight=3),
            *(self._build_step_section(step, aliases, named) for step in self.steps.values()),
            *([PromptSection(title=f"# {self.left_out:,} more steps are not shown")] if self.left_out else []),
            *build_optional_section(ROUTES, quote_optional("routes", self._describe_routes(aliases)), weight=4),
            PromptSection(title="# What went wrong", quotes=reports, weight=12),
            *build_optional_section(
                "# What the metrics found", quote_optional("findings", "\n".join(unshown)), weight=3
            ),
            *build_optional_section(EXPECTED, quote_optional("expected", self.view.expected), weight=8),
        ]

    def _describe_routes(self, aliases: Mapping[str, str]) -> str:
        lines = (
            *describe_routes(self.view.missed_routes, names=aliases),
            *describe_absent_owners(self.view.absent_owners),
        )
        return "\n".join(lines)

    def _build_surface_section(self, named: Mapping[str, str]) -> PromptSection:
        read = {surface.id: surface for step in self.steps.values() for surface in self.view.surfaces_of(step)}
        blamable = [quote_surface(read[each], name=alias) for each, alias in named.items() if each in read]
        fixed = [quote_surface(each, name="fixed") for each in _find_fixed_surfaces(read, named)]
        return PromptSection(title="# The surfaces", quotes=(*blamable, *fixed), weight=6)

    def _build_step_section(self, step: Step, aliases: Mapping[str, str], named: Mapping[str, str]) -> PromptSection:
        blamable = [named[surface_id] for surface_id in self.view.blamable[step.id]]
        source = self._find_input_source(step, aliases)
        heading = [
            f"# Step {aliases[step.id]}",
            *_list_aliases("after", [aliases[before] for before in step.predecessors if before in aliases]),
            *_list_aliases("did not read", [aliases[before] for before in step.unread if before in aliases]),
            *([f"its input is {source}"] if source else []),
            *(_list_aliases("may be blamed:", blamable) or ["no surface may be blamed"]),
        ]
        calls = quote_numbered("call", map(render_call, step.tool_calls))
        quotes = (*quote_step(step, has_input=not source), *calls)
        return PromptSection(title="; ".join(heading), quotes=quotes, weight=6 if blamable else 4)

    def _find_input_source(self, step: Step, aliases: Mapping[str, str]) -> str:
        """Where else the whole input of a step is shown; empty if nowhere else."""
        given = render_snapshot(step.input)
        if not given or step.input.blobs:
            return ""
        for before in step.predecessors:
            if before in aliases and render_snapshot(self.view.steps[before].output) == given:
                return f"the output of {aliases[before]}"
        return "what the user said" if given == self.view.request.case_loss.input else ""


def _select_steps(steps: list[Step], view: TraceView) -> list[Step]:
    """Select the steps that failed or gave a wrong value, then the last ones; in the order of the trace."""
    wrong = collect_wrong_values(collect_findings(view.request.case_loss.losses))
    order = sorted(range(len(steps)), key=lambda number: (not is_suspect(steps[number], wrong), -number))
    return [steps[number] for number in sorted(order[:MOST_STEPS])]


def _quote_reports(losses: Iterable[Loss], aliases: Mapping[str, str]) -> tuple[Quote, ...]:
    """Quote each distinct loss, the worst first, with the steps that it is placed on."""
    places: dict[str, list[str]] = {}
    for loss in sorted(losses, key=lambda loss: (loss.severity, loss.metric, loss.text)):
        text = f"{loss.metric}: {loss.text}" if loss.metric else loss.text
        at = places.setdefault(f"{loss.severity}, {loss.category}: {text}", [])
        at += [aliases[loss.step_id]] if loss.step_id in aliases else []
    return tuple(Quote(" ".join(["report", *_list_aliases("at", at)]), text) for text, at in places.items())


def _find_fixed_surfaces(read: Mapping[str, Surface], blamable: Mapping[str, str]) -> Iterator[Surface]:
    """The surfaces that may not be blamed, without empty ones."""
    for surface_id in sorted(read):
        if surface_id not in blamable and read[surface_id].value not in ("", [], None):
            yield read[surface_id]


def _list_aliases(word: str, aliases: list[str]) -> list[str]:
    """`after T1, T2`: at most MOST_LISTED aliases after a word; empty if there are none."""
    if not aliases:
        return []
    in_order = sorted(set(aliases), key=lambda alias: int(alias[1:]))
    return [f"{word} {join_names(in_order, limit=MOST_LISTED)}"]
