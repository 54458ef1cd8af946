"""The Critic, which diagnoses what is wrong with a text, and the Applier, which edits it: requests and results.

They are the two halves of a textual trial of coordinate descent. A diagnosis without confidence ends the trial before
anything is edited or run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from promptiter.numbers import is_number
from promptiter.stages.reflection import CaseRecord
from promptiter.structure import Surface

EditType: TypeAlias = Literal["insert", "replace", "delete", "restructure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong with a text, and in which direction it should change. `citations` are the cases that show it.

    `confidence` is from 0 to 1. `avoid` lists what an edit should not do.
    """

    failing_pattern: str
    root_cause_hypothesis: str = ""
    suggested_change_direction: str = ""
    confidence: float = 1.0
    citations: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_number(self.confidence, least=0) or self.confidence > 1:
            raise ValueError(f"the confidence of a diagnosis is {self.confidence!r}; give a number from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedTrial:
    """A textual trial that was not accepted: its diagnosis, the text that was tried, if any, and why."""

    diagnosis: Diagnosis
    text: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseRequest:
    """A text, some failed cases, and what was tried before. `surface.value` is the current text.

    `together` are the other texts that the same trial changes. `criteria` say what the metrics look at, by name.
    """

    surface: Surface
    failing: tuple[CaseRecord, ...]
    rejected: tuple[RejectedTrial, ...] = ()
    together: tuple[Surface, ...] = ()
    node_description: str = ""
    criteria: Mapping[str, str] = field(default_factory=dict)


class Critic(Protocol):
    """Diagnoses one text. Called once per text of a textual trial; a ModelError ends only that trial."""

    def diagnose(self, request: DiagnoseRequest) -> Awaitable[Diagnosis] | Diagnosis:
        """Return what is wrong with the text, with a confidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRequest:
    """A text and its diagnosis. `surface.value` is the current text, `surface.limits` what a new one must respect."""

    surface: Surface
    diagnosis: Diagnosis
    rejected: tuple[RejectedTrial, ...] = ()
    together: tuple[Surface, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEdit:
    """The new text of a surface, and why. `summary` describes the difference."""

    new_text: str
    rationale: str = ""
    edit_type: EditType = "replace"
    summary: str = ""


class Applier(Protocol):
    """Edits one text, after its diagnosis. Called once per text of a textual trial; a ModelError ends only that."""

    def apply(self, request: ApplyRequest) -> Awaitable[TextEdit] | TextEdit:
        """Return the whole new text."""
