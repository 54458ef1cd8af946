"""RuleOptimizer: writes patches from evidence, with no model.

It looks for predicates that separate the good outputs of a step from the bad ones, and asks for them in plain
sentences. After a rejection it drops rules before it words them differently: a wrong rule is more likely than a wrong
wording. It keeps no state: it lists all its proposals in order and skips those that were rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import ClassVar

from promptiter.offline.rules.examples import collect_evidence
from promptiter.offline.rules.field_descriptions import iterate_descriptions
from promptiter.offline.rules.predicates import VALUE_FORMS, Support, find_qualified
from promptiter.offline.rules.prompt_editing import Ask, Prompt, asks_to_copy, find_changed_passage
from promptiter.offline.rules.rule_selection import iterate_choices
from promptiter.offline.rules.settings import iterate_values
from promptiter.profile import PatchEdit, PatchEvidence, SurfacePatch
from promptiter.stages.optimizer import OptimizeRequest, PatchResult, StepExample
from promptiter.structure import TEXT_TYPES, Surface
from traces.model import Json

VALUE_WRITINGS = VALUE_FORMS - {"json_only"}

MAX_COMBINED = 4
"""Of at most this many rules, all combinations are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptimizer:
    """An Optimizer that needs no model. `seed` chooses the first phrasing of a rule; 0 is the most natural."""

    model: ClassVar[None] = None

    seed: int = 0

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        """The first proposal that the surface can take and that was not rejected before, or None with the reason."""
        surface = request.surface
        count = 0
        for proposal in self._iterate_proposals(request):
            count += 1
            if _is_allowed(surface, proposal.value) and not _is_rejected(proposal.value, request):
                return PatchResult(
                    patch=SurfacePatch(
                        surface_id=surface.id,
                        value=proposal.value,
                        reason=proposal.reason,
                        evidence=PatchEvidence(cases=proposal.evidence),
                        edits=proposal.edits,
                    )
                )
        return PatchResult(patch=None, reason=_explain_no_patch(request, proposed=count))

    def _iterate_proposals(self, request: OptimizeRequest) -> Iterator[Proposal]:
        """All proposals, the best first: each choice of predicates with ever fewer rules, then worded differently."""
        surface = request.surface
        if surface.type not in TEXT_TYPES:
            case_ids = tuple(sorted({example.case_id for example in request.failing}))
            for value, reason in iterate_values(request):
                yield Proposal(value, reason, case_ids)
            return
        if surface.type == "field":
            for text, supports in iterate_descriptions(surface, request.failing, request.passing):
                yield _propose_description(surface, text, supports, failing=request.failing)
            return
        tool = surface.part if surface.type == "tool" else ""
        tools = {each.part for each in (surface, *request.siblings) if each.type == "tool"}
        evidence = collect_evidence(request.failing, request.passing, tool=tool, tools=tools, prompt=surface.value)
        found = find_qualified(evidence)
        if asks_to_copy(surface.value):  # then this step is hardly responsible for how values are written
            writings = [support for support in found if support.predicate.family in VALUE_WRITINGS]
            others = [support for support in found if support not in writings]
            ordered = [
                *iterate_choices(others),
                *iterate_choices([support for support in writings if support.explained]),
            ]
        else:
            ordered = list(iterate_choices(found))
        names = tuple(sorted({name for sample in evidence.samples for name in sample.fields}))
        prompt = Prompt(text=surface.value, locked=surface.limits.locked, known_fields=names)
        for chosen in ordered:
            yield from self._iterate_subsets(prompt, chosen)
            yield from self._iterate_wordings(prompt, chosen)

    def _iterate_subsets(self, prompt: Prompt, chosen: Sequence[Support]) -> Iterator[Proposal]:
        """The text with all chosen rules that it does not have yet, then with fewer: the weakest is dropped first."""
        new = [support for support in chosen if not all(prompt.asks(each.rule) for each in _list_asks([support]))]
        for subset in _list_subsets(new):
            yield _propose(prompt, _list_asks(subset), turn=self.seed)

    def _iterate_wordings(self, prompt: Prompt, chosen: Sequence[Support]) -> Iterator[Proposal]:
        """The text with all chosen rules, in one phrasing after the other, then as short as possible."""
        asks = _list_asks(chosen)
        for turn in range(max(len(prompt.list_ways(ask.rule)) for ask in asks)):
            yield _propose(prompt, asks, turn=turn + self.seed)
        for count in range(len(chosen), 0, -1):
            yield _propose(prompt, _list_asks(chosen[:count]))


@dataclass(frozen=True, slots=True)
class Proposal:
    """A value to try, with its reason and the cases behind it, and the same for each edit of a text."""

    value: Json
    reason: str
    evidence: tuple[str, ...]
    edits: tuple[PatchEdit, ...] = ()


@dataclass(frozen=True, slots=True)
class _Request:
    """A rule to ask for, and the predicates that want it."""

    rule: Ask
    supports: tuple[Support, ...]

    @property
    def reason(self) -> str:
        return ". ".join(support.reason for support in self.supports)

    @property
    def case_ids(self) -> tuple[str, ...]:
        return tuple(sorted({case_id for support in self.supports for case_id in support.explained}))


def _list_subsets(supports: Sequence[Support]) -> Iterator[tuple[Support, ...]]:
    """All rules, all but one, and so on; of many rules, only all, all but one, and each alone."""
    count = len(supports)
    sizes = range(count, 0, -1) if count <= MAX_COMBINED else sorted({count, count - 1, 1}, reverse=True)
    return chain.from_iterable(combinations(supports, size) for size in sizes)


def _list_asks(chosen: Sequence[Support]) -> list[_Request]:
    """The rules to ask for: one for each predicate, but only one for all fields."""
    carried = tuple(support for support in chosen if support.predicate.family == "field_carried")
    fields = tuple(support.predicate.subject for support in carried)
    asks = [
        _Request(Ask(support.predicate.family, support.predicate.parameters), (support,))
        for support in chosen
        if support.predicate.family != "field_carried"
    ]
    return [*([_Request(Ask("field_carried", fields), carried)] if fields else []), *asks]


def _propose(prompt: Prompt, asks: Sequence[_Request], *, turn: int | None = None) -> Proposal:
    """The text with all rules in it, each as an edit of its own; without a `turn`, as short as possible."""
    edited, edits = prompt, []
    for each in asks:
        before = edited.text
        edited = edited.ask_briefly(each.rule) if turn is None else edited.ask(each.rule, turn=turn)
        evidence = PatchEvidence(cases=each.case_ids)
        old, new = find_changed_passage(before, edited.text)
        edits.append(PatchEdit(before=old, after=new, reason=each.reason, evidence=evidence))
    case_ids = sorted({case_id for each in asks for case_id in each.case_ids})
    return Proposal(edited.text, ". ".join(each.reason for each in asks), tuple(case_ids), tuple(edits))


def _propose_description(
    surface: Surface, text: str, supports: Sequence[Support], *, failing: Sequence[StepExample]
) -> Proposal:
    """A description of an output field, as one edit. Without predicates, it only says what the field is called."""
    reason = ". ".join(support.reason for support in supports) or "the description does not name what the field holds"
    explained = {case_id for support in supports for case_id in (*support.explained, *support.unseen)}
    case_ids = tuple(sorted(explained or {example.case_id for example in failing}))
    edit = PatchEdit(before=surface.value, after=text, reason=reason, evidence=PatchEvidence(cases=case_ids))
    return Proposal(text, reason, case_ids, (edit,))


def _is_allowed(surface: Surface, value: Json) -> bool:
    return surface.allows(value) and bool(value != surface.value)


def _is_rejected(value: Json, request: OptimizeRequest) -> bool:
    return any(_normalize_value(rejection.value) == _normalize_value(value) for rejection in request.rejected)


def _normalize_value(value: Json) -> Json:
    return " ".join(value.split()).casefold() if isinstance(value, str) else value


def _explain_no_patch(request: OptimizeRequest, *, proposed: int) -> str:
    surface = request.surface
    if proposed:
        return f"all {proposed} proposals for {surface.id} were rejected before or break its limits"
    if surface.type not in TEXT_TYPES:
        return f"there is no other value to try for {surface.id}"
    if not request.failing:
        return f"there is no failing example for {surface.id}"
    if not any(example.input for example in request.failing):
        name = request.failing[0].step_id
        return f"step {name!r} recorded no input, so no rule was found; record it with traces.step(..., input=...)"
    failing, passing = len(request.failing), len(request.passing)
    return f"found no rule that separates the {failing} failing from the {passing} passing outputs of {surface.id}"
