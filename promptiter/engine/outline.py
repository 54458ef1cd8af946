"""SearchOutline: what a search may ask for, so that a run can be forecast before it starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from promptiter.llm.gateway import Gateway
from promptiter.runlog.results import RunShape
from promptiter.structure import StructureSnapshot
from promptiter.wording import join_names

UNKNOWN_MODEL = "unknown"
"""The model of a stage or node that is the user's own code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutline:
    """What one round of a search may ask for. A stage's model is None if the stage asks no model.

    A round goes from losses to patches up to `passes` times and re-runs up to `max_rerun` failed train cases each time.
    In the first of these passes it writes `width` candidates.
    Of train sets that are more than twice as large, a round runs `minibatch` cases first, and more if few of them fail.
    One call of the backwarder is about a step, a failed trace, or a batch of them.
    Up to `max_checked` pieces of blame are checked by replays. A search for another goal than the score does none of
    this: it runs up to `screened_cases` train cases about `screenings` times for each target, then validates one
    candidate per round. A round that tries examples runs `screened_cases` train cases under each of its `trials`.
    The `teacher` of few-shot examples, a model, runs the train cases that fail, each once.
    If it `reads_validation`, the validation cases cannot show a gain for new cases.
    A round that is an iteration runs a mini-batch twice instead: under a parent, and under a child in which `rewrites`
    says which texts are new. It validates the child only if it does better there.
    A round of trials runs the train cases under `batch` candidates, and validates those that do better; `edited_share`
    of the rounds ask critic and applier, or the stages, for a new text.

    A search that ends by itself makes at most `max_rounds` rounds. Unless the request sets a limit, that is the limit
    of the run, and rounds without an accepted candidate do not end it.
    """

    passes: int = 1
    max_rerun: int = 0
    minibatch: int | None = None
    width: int = 1
    blamed_per_call: Literal["step", "trace", "batch"] = "step"
    max_checked: int = 0
    corrector: str | None = None
    backwarder: str | None = None
    aggregator: str | None = None
    optimizer: str | None = None
    reads_validation: bool = False
    screened_cases: int | None = None
    screenings: int = 0
    trials: int = 0
    teacher: str | None = None
    rewrites: Literal["one", "blamed", "all"] | None = None
    batch: int | None = None
    edited_share: float = 0.0
    critic: str | None = None
    applier: str | None = None
    max_rounds: int | None = None


@runtime_checkable
class OutlinedSearch(Protocol):
    """A search that can be forecast. One without an outline is assumed to run train and validation once per round."""

    def outline(self) -> SearchOutline:
        """Called before a run starts; must not block."""


@runtime_checkable
class ModelCallingSearch(Protocol):
    """A search that can say before a run which of its models cannot be called, or have no price, and what it lacks."""

    def find_setup_problems(self, gateway: Gateway) -> list[str]:
        """One line for each such model, program or package. `gateway` is that of the run. May block."""


@runtime_checkable
class TargetedSearch(Protocol):
    """A search that does not work with every choice of targets or of eval sets, and says so before a run."""

    def find_target_problems(
        self, snapshot: StructureSnapshot, targets: Collection[str], *, shape: RunShape
    ) -> list[str]:
        """One line for each problem of these targets, in a run of this shape. Must not block."""


@runtime_checkable
class TargetChoosingSearch(Protocol):
    """A search that is for other surfaces than texts, and chooses them if a request names no targets."""

    def choose_targets(self, snapshot: StructureSnapshot) -> Iterable[str]:
        """The surfaces that it would change. Must not block."""


@runtime_checkable
class SelectiveSearch(Protocol):
    """A search that cannot change every kind of target, and says which of them it leaves as they are."""

    def find_kept_targets(
        self, snapshot: StructureSnapshot, targets: Collection[str], *, shape: RunShape
    ) -> Iterable[str]:
        """The targets that keep their values in a run of this shape. Must not block."""


def find_kept_targets(
    search: object, snapshot: StructureSnapshot, targets: Collection[str], *, shape: RunShape
) -> list[str]:
    """The targets that a search cannot change, in order."""
    if not isinstance(search, SelectiveSearch):
        return []
    return sorted(search.find_kept_targets(snapshot, targets, shape=shape))


def describe_kept_targets(
    search: object, snapshot: StructureSnapshot, targets: Collection[str], *, shape: RunShape
) -> str | None:
    """Say which targets a search cannot change; None if it can change all of them."""
    kept = find_kept_targets(search, snapshot, targets, shape=shape)
    if not kept:
        return None
    return f"this search cannot change some targets, so they keep their values: {join_names(kept, limit=5)}"
