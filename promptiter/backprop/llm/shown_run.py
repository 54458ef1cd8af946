"""ShownRun: one failed run as TracePrompt shows it, with steps T1, T2, … and findings F1, F2, …

A step is a heading and what it returned. Texts are not repeated: if the input of a step is the output of another one,
or contains it, the prompt only says so, and steps that returned what they read share one heading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from promptiter.backprop.llm.prompts import ROUTES
from promptiter.backprop.llm.rendering import (
    EARLIER,
    USER,
    build_optional_section,
    collect_wrong_values,
    describe_absent_owners,
    describe_routes,
    is_suspect,
    name_node,
    quote_numbered,
    quote_optional,
    refer_to_known,
    render_call,
    render_snapshot,
)
from promptiter.backprop.llm.reports import Report, alias_reports, collect_findings, collect_reports
from promptiter.backprop.llm.truncation import PromptSection, Quote
from promptiter.backprop.propagate import TraceView
from promptiter.wording import join_names
from traces import Step

MOST_STEPS = 500
"""Maximum number of steps shown in one prompt."""

MOST_LISTED = 12
"""Maximum number of aliases listed in a heading."""


@dataclass(frozen=True, slots=True)
class ShownRun:
    """The steps of a run's walk and what was wrong with it, by alias. `left_out` steps are not shown."""

    view: TraceView
    steps: Mapping[str, Step]
    reports: Mapping[str, Report]
    left_out: int

    @classmethod
    def of(cls, view: TraceView, *, first_step: int = 1, first_report: int = 1) -> ShownRun:
        """Choose what is shown of a run; its first step and its first finding get these numbers."""
        steps = [step for step in view.request.trace.steps if step.id in view.predecessors]
        reports = alias_reports(collect_reports(view.split_losses), first=first_report)
        shown = _select_steps(steps, reports.values(), MOST_STEPS)
        named = {f"T{number}": step for number, step in enumerate(shown, first_step)}
        return cls(view, named, reports, left_out=len(steps) - len(shown))

    def keep_steps(self, most: int) -> ShownRun:
        """The run with at most so many steps; their aliases stay."""
        kept = {step.id for step in _select_steps([*self.steps.values()], self.reports.values(), most)}
        steps = {alias: step for alias, step in self.steps.items() if step.id in kept}
        return replace(self, steps=steps, left_out=self.left_out + len(self.steps) - len(steps))

    @property
    def blamable(self) -> set[str]:
        """The surfaces that may be blamed at a shown step."""
        return {surface_id for step in self.steps.values() for surface_id in self.view.blamable[step.id]}

    @property
    def blamable_steps(self) -> list[str]:
        """The aliases of the steps with blamable surfaces."""
        return [alias for alias, step in self.steps.items() if self.view.blamable[step.id]]

    def build_sections(self, number: int, surfaces: Mapping[str, str]) -> Iterator[PromptSection]:
        """Build the sections of the run with this number; `surfaces` has the aliases of surfaces by id."""
        aliases = {step.id: alias for alias, step in self.steps.items()}
        case = self.view.request.case_loss
        said = (*quote_optional(EARLIER, case.earlier), *quote_optional("user", case.input))
        yield PromptSection(title=f"# Run {number}", quotes=said, weight=3)
        yield from self.build_step_sections(surfaces)
        if self.left_out:
            yield PromptSection(title=f"## {self.left_out:,} more steps are not shown")
        routes = (
            *describe_routes(self.view.missed_routes, names=aliases),
            *describe_absent_owners(self.view.absent_owners),
        )
        yield from build_optional_section(f"#{ROUTES}", quote_optional("routes", "\n".join(routes)), weight=4)
        quotes = (*self._quote_reports(aliases), *quote_optional("expected", self.view.expected))
        yield PromptSection(title="## What is wrong with the result", quotes=quotes, weight=12)

    def build_step_sections(self, surfaces: Mapping[str, str]) -> list[PromptSection]:
        """Build the sections of the steps. All of them weigh as much as one section about the run."""
        aliases = {step.id: alias for alias, step in self.steps.items()}
        groups = [*self._group_steps(aliases)]
        return [self._build_step_section(steps, aliases, surfaces, count=len(groups)) for steps in groups]

    def _group_steps(self, aliases: Mapping[str, str]) -> Iterator[list[Step]]:
        """The steps in order; those in a row that returned the output of the same step as it is are one group."""
        origins: dict[str, str] = {}
        group: list[Step] = []
        for step in self.steps.values():
            origin = self._find_origin(step, aliases)
            if origin:
                origins[step.id] = origins.get(origin, origin)
            is_same = group and origins.get(step.id, "") and origins.get(group[-1].id) == origins[step.id]
            if group and not is_same:
                yield group
                group = []
            group.append(step)
        if group:
            yield group

    def _find_origin(self, step: Step, aliases: Mapping[str, str]) -> str:
        """The step whose output this one read and returned as it is; empty if it did anything else."""
        if step.error is not None or step.tool_calls or len(step.predecessors) != 1 or step.unread:
            return ""
        [source] = step.predecessors
        if source not in aliases or step.input.blobs or step.output.blobs:
            return ""
        output = render_snapshot(step.output)
        is_same = output == render_snapshot(step.input) == render_snapshot(self.view.steps[source].output)
        return source if output and is_same else ""

    def _build_step_section(
        self, steps: Sequence[Step], aliases: Mapping[str, str], surfaces: Mapping[str, str], *, count: int
    ) -> PromptSection:
        names: list[str] = []
        quotes: list[Quote] = []
        for step in steps:
            blamable = [surfaces[surface_id] for surface_id in self.view.blamable[step.id]]
            name, unfit = name_node(step.node_id)
            kind = [] if step.kind == "llm" else [step.kind]
            names.append(" ".join([aliases[step.id], *kind, *name, *([f"({_join(blamable)})"] if blamable else [])]))
            quotes += unfit
        weight = (6 if any(self.view.blamable[step.id] for step in steps) else 4) / count
        [first, *_] = steps
        if self._find_origin(first, aliases):
            [source] = first.predecessors
            title = f"## {', '.join(names)}: returned the output of {aliases[source]} unchanged"
            return PromptSection(title=title, quotes=tuple(quotes), weight=weight)
        read, given = self._describe_input(first, aliases)
        quotes += [
            *quote_optional("error", str(first.error) if first.error is not None else None),
            *given,
            *quote_numbered("call", map(render_call, first.tool_calls)),
            Quote("output", render_snapshot(first.output)),
        ]
        return PromptSection(title=f"## {names[0]}{read}", quotes=tuple(quotes), weight=weight)

    def _describe_input(self, step: Step, aliases: Mapping[str, str]) -> tuple[str, tuple[Quote, ...]]:
        """What a step read, for its heading, and its input, unless it is exactly what it read."""
        known = {
            aliases[each]: render_snapshot(self.view.steps[each].output) for each in step.sources if each in aliases
        }
        said, given = self.view.request.case_loss.input, render_snapshot(step.input)
        names = list(known)
        is_known = not step.input.blobs and (given == said or (len(known) == 1 and given in known.values()))
        if is_known and given == said and given not in known.values():
            names = ["what the user said"]
        after = [aliases[each] for each in step.unread if each in aliases]
        parts = [
            *([f"read {_join(names)}"] if names else []),
            *([f"ran after {_join(after)} without reading it"] if after else []),
        ]
        heading = f": {'; '.join(parts)}" if parts else ""
        return heading, () if is_known else quote_optional("input", refer_to_known(given, {**known, USER: said}))

    def _quote_reports(self, aliases: Mapping[str, str]) -> Iterator[Quote]:
        """Quote the findings. Those that are not about the end of the run name their steps."""
        ends = {step.id for step in self.view.request.trace.terminals}
        for alias, report in self.reports.items():
            at = [aliases[each] for each in report.step_ids if each in aliases and each not in ends]
            yield Quote(f"{alias} at {_join(at)}" if at else alias, report.text)


def _select_steps(steps: list[Step], reports: Iterable[Report], most: int) -> list[Step]:
    """Select the steps that failed or gave a wrong value, then others; in the order of the trace.

    Of both kinds the first and the last ones are selected: a value is lost early in a long loop, or spoiled at its end.
    """
    if len(steps) <= most:
        return steps
    wrong = collect_wrong_values(collect_findings(reports))
    kinds: tuple[list[int], list[int]] = ([], [])
    for number, step in enumerate(steps):
        kinds[not is_suspect(step, wrong)].append(number)
    order = [number for kind in kinds for number in _order_from_both_ends(kind)]
    return [steps[number] for number in sorted(order[:most])]


def _order_from_both_ends(numbers: list[int]) -> list[int]:
    """The last one, the first one, the last but one, …"""
    places = sorted(range(len(numbers)), key=lambda place: (min(place, len(numbers) - 1 - place), -place))
    return [numbers[place] for place in places]


def _join(names: Sequence[str]) -> str:
    """The distinct names, in the order of their numbers, as far as they have one."""
    return join_names(sorted(set(names), key=lambda name: (len(name), name)), limit=MOST_LISTED)
