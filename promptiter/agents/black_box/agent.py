"""BlackBoxAgent: what functions, commands and services share as agents."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from promptiter.agents.argument_checks import check_named
from promptiter.agents.black_box.output import Normalize, check_normalize
from promptiter.agents.black_box.prompts import Prompt, PromptSet
from promptiter.agents.black_box.templates import Placeholder
from promptiter.errors import SetupError
from promptiter.sources import Source
from promptiter.structure import Limits, StructureSnapshot
from promptiter.wording import join_names


@dataclass(frozen=True, kw_only=True)
class BlackBoxAgent:
    """An agent of which only the prompts are known. `normalize` says where its answer is in what it returns.

    `limits` has what new values of prompts must respect, by the name of the prompt.
    `is_in_place` if it reads its prompts from their sources itself: wrap it in an InPlaceAgent.
    """

    prompts: Mapping[str, Prompt]
    name: str = "agent"
    normalize: Normalize | None = None
    is_in_place: bool = False
    limits: Mapping[str, Limits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_normalize(self.normalize)
        check_named(f"agent {self.name!r}: limits", self.limits, Limits, wanted="Limits by the name of a prompt")
        _ = self._prompts.limits

    def describe(self) -> StructureSnapshot:
        return self._prompts.snapshot

    @property
    def sources(self) -> Mapping[str, Source]:
        """Where its prompts are stored, by surface."""
        return self._prompts.sources

    @cached_property
    def _prompts(self) -> PromptSet:
        return PromptSet(self.name, self.prompts, self.limits)

    def _check_placeholders(
        self, used: Collection[Placeholder], *, what: str, kinds: Sequence[str], places: str
    ) -> None:
        """Raise SetupError if templates leave out a prompt, or the message of the case."""
        surfaces = {each.surface_id for each in used}
        unused = [name for name in self.prompts if self._prompts.ids[name] not in surfaces]
        if unused and not self.is_in_place:
            ways = " or ".join(f"{{{kind}:{unused[0]}}}" for kind in kinds)
            raise SetupError(
                f"agent {self.name!r}: the {what} does not get the prompt {join_names(unused)}; write {ways} in "
                f"{places}, or use it in place"
            )
        if not has_input(used):
            raise SetupError(f"agent {self.name!r}: the {what} does not get the message of the case; write {{input}}")


def has_input(used: Collection[Placeholder]) -> bool:
    """Whether templates with these placeholders pass on the message of the case."""
    return any(each.kind in ("input", "history") for each in used)
