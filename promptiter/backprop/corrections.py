"""Corrections: what a blamed step should have given, so that a replay can show whether that helps.

A Corrector is asked for the output that the step could have given under a better surface, *with the input it got*. That
is the whole point: whoever puts the expected answer into the output of a step that never saw what it is made of moves
the score and proves nothing, least of all at the last step. So a correction is refused where it holds something that
had been lost before the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from promptiter.backprop.step_text import snapshot_text
from promptiter.llm.redaction import MASK
from promptiter.stages.contracts import SurfaceGradient
from promptiter.stages.losses import CaseLoss
from promptiter.structure import Surface
from traces import ExecutionTrace, Snapshot, Step
from traces.model import Json

CorrectionKind: TypeAlias = Literal["corrected", "no_better", "unknown"]
"""There is a better output; with its input the step could do no better; or the corrector cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionRequest:
    """A blamed step in a failed run, with the losses of that run. `gradients` are what blames the step.

    `surfaces` are those that it read, with their current values; `references` the expected answers of other cases.
    """

    case_loss: CaseLoss
    trace: ExecutionTrace
    step: Step
    gradients: tuple[SurfaceGradient, ...] = ()
    surfaces: tuple[Surface, ...] = ()
    references: tuple[str, ...] = ()

    @property
    def expected(self) -> str | None:
        """The expected answer of the whole run."""
        return next((loss.expected for loss in self.case_loss.losses if loss.expected is not None), None)

    @property
    def is_answer(self) -> bool:
        """Whether the step wrote the answer: nothing that depends on it could be told anything."""
        behind = {self.step.id}
        for each in self.trace.steps:
            if not behind.isdisjoint(each.predecessors):
                if each.surface_reads != {}:
                    return False
                behind.add(each.id)
        return True

    @property
    def is_whole(self) -> bool:
        """Whether the trace has all of what went into the step and came out of it, secrets included."""
        sides = (self.step.input, self.step.output)
        return not any(each.blobs or MASK in snapshot_text(each) for each in sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What a step should have given, if anybody can say; the reason is in words."""

    kind: CorrectionKind
    output: Json = None
    reason: str = ""


class Corrector(Protocol):
    """Corrects one step. Called for blamed steps of a sample of failed runs, some at once; a ModelError skips one."""

    async def correct(self, request: CorrectionRequest) -> Correction:
        """The output that the step could have given, with the input it got."""


FindLostValues: TypeAlias = Callable[[CorrectionRequest, str], Sequence[str]]
"""Finds what a corrected output contains although it had been lost before the step, which could not know it."""


def same_shape(text: str, output: Snapshot) -> Json:
    """A corrected text as the step would give it: as it is, or as data if the step gave data. Raises ValueError."""
    if output.text is not None or output.data is None:
        return text
    from promptiter.evaluation.metrics.json_match import parse_json

    return parse_json(text)
