"""RuleOptimizer: writes patches from evidence, with no model.

It looks for predicates that part the good outputs of a step from the bad ones, and asks for them in plain sentences.
It keeps no state: it works out all that it would propose, in order, and leaves out what was rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from promptiter.errors import SurfaceValueError
from promptiter.offline.rules.examples import Evidence, evidence_of
from promptiter.offline.rules.predicates import VALUE_FORMS, Support, qualified
from promptiter.offline.rules.prompt_editing import Ask, Prompt, asks_to_copy
from promptiter.offline.rules.rule_selection import choices
from promptiter.offline.rules.settings import other_values
from promptiter.profile import PatchEvidence, SurfacePatch
from promptiter.stages.contracts import OptimizeRequest, OptimizeResult
from promptiter.structure import TEXT_TYPES, Surface
from traces.model import Json

VALUE_WRITINGS = VALUE_FORMS - {"json_only"}
MOST_EVIDENCE = 10
"""So many case ids are named as evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptimizer:
    """An Optimizer that needs no model. `seed` says with which phrasing of a rule it begins; 0: the most natural."""

    model: ClassVar[None] = None  # asks no model

    seed: int = 0

    async def optimize(self, request: OptimizeRequest) -> OptimizeResult:
        """The first proposal that the surface can take and that was not rejected before, or None with the reason."""
        surface = request.surface
        count = 0
        for proposal in self._proposals(request):
            count += 1
            if _is_allowed(surface, proposal.value) and not _is_rejected(proposal.value, request):
                return OptimizeResult(
                    patch=SurfacePatch(
                        surface_id=surface.id,
                        value=proposal.value,
                        reason=proposal.reason,
                        evidence=PatchEvidence(cases=proposal.evidence),
                    )
                )
        return OptimizeResult(patch=None, reason=_why_nothing(request, proposed=count))

    def _proposals(self, request: OptimizeRequest) -> Iterator[Proposal]:
        """All that there is to propose: for each choice of predicates one text after the other, the best first."""
        surface = request.surface
        if surface.type not in TEXT_TYPES:
            case_ids = tuple(sorted({example.case_id for example in request.failing}))[:MOST_EVIDENCE]
            for value, reason in other_values(surface, request.passing):
                yield Proposal(value, reason, case_ids)
            return
        tool = surface.part if surface.type == "tool" else ""
        tools = {each.part for each in (surface, *request.siblings) if each.type == "tool"}
        evidence = evidence_of(request.failing, request.passing, tool=tool, tools=tools)
        found = qualified(evidence)
        if asks_to_copy(surface.value):  # then how values are written is most likely not this step's doing
            writings = [support for support in found if support.predicate.family in VALUE_WRITINGS]
            others = [support for support in found if support not in writings]
            ordered = [*choices(others), *choices([support for support in writings if support.explained])]
        else:
            ordered = list(choices(found))
        for chosen in ordered:
            yield from self._texts(surface, evidence, chosen)

    def _texts(self, surface: Surface, evidence: Evidence, chosen: Sequence[Support]) -> Iterator[Proposal]:
        """The current text with all chosen rules in it, in one phrasing after the other; at last in few words."""
        names = tuple(sorted({name for sample in evidence.samples for name in sample.fields}))
        prompt = Prompt(text=surface.value, locked=surface.limits.locked, known_fields=names)
        asks = _asks(chosen)
        for turn in range(max(len(prompt.ways(ask)) for ask in asks)):
            edited = prompt
            for ask in asks:
                edited = edited.asking(ask, turn=turn + self.seed)
            yield _proposal(edited.text, chosen)
        for count in range(len(chosen), 0, -1):
            edited = prompt
            for ask in _asks(chosen[:count]):
                edited = edited.asking_briefly(ask)
            yield _proposal(edited.text, chosen[:count])


@dataclass(frozen=True, slots=True)
class Proposal:
    """A value that could be tried, with its reason and the cases behind it."""

    value: Json
    reason: str
    evidence: tuple[str, ...]


def _asks(chosen: Sequence[Support]) -> list[Ask]:
    """What to ask for: one rule for each predicate, but one rule for all fields together."""
    fields = tuple(support.predicate.subject for support in chosen if support.predicate.family == "field_carried")
    asks = [
        Ask(support.predicate.family, support.predicate.parameters)
        for support in chosen
        if support.predicate.family != "field_carried"
    ]
    return [*([Ask("field_carried", fields)] if fields else []), *asks]


def _proposal(text: str, chosen: Sequence[Support]) -> Proposal:
    case_ids = sorted({case_id for support in chosen for case_id in support.explained})
    return Proposal(text, ". ".join(support.reason for support in chosen), tuple(case_ids[:MOST_EVIDENCE]))


def _is_allowed(surface: Surface, value: Json) -> bool:
    try:
        surface.check(value)
    except SurfaceValueError:
        return False
    return bool(value != surface.value)


def _is_rejected(value: Json, request: OptimizeRequest) -> bool:
    return any(_comparable(rejection.value) == _comparable(value) for rejection in request.rejected)


def _comparable(value: Json) -> Json:
    return " ".join(value.split()).casefold() if isinstance(value, str) else value


def _why_nothing(request: OptimizeRequest, *, proposed: int) -> str:
    surface = request.surface
    if proposed:
        return f"all {proposed} proposals for {surface.id} were rejected before or break its limits"
    if surface.type not in TEXT_TYPES:
        return f"there is no other value to try for {surface.id}"
    if not request.failing:
        return f"there is no failing example for {surface.id}"
    failing, passing = len(request.failing), len(request.passing)
    return f"found no rule that separates the {failing} failing from the {passing} passing outputs of {surface.id}"
