"""Corrections: the output that a blamed step should have had, so that a replay can show whether that helps.

A Corrector gives the output that the step could have had under a better surface *with the input it got*. Putting the
expected answer into a step that never saw its parts raises the score but proves nothing, least of all at the last step.
A correction is therefore refused if it contains something that had been lost before the step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, TypeAlias

from promptiter.backprop.step_text import snapshot_text
from promptiter.grouping import ById
from promptiter.llm.redaction import MASK
from promptiter.stages.contracts import SurfaceGradient
from promptiter.stages.losses import CaseLoss
from promptiter.structure import Surface
from traces import ExecutionTrace, Snapshot, Step
from traces.model import Json

CorrectionKind: TypeAlias = Literal["corrected", "no_better", "unknown"]
"""There is a better output; the step could not do better with its input; or the corrector does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionRequest:
    """A blamed step in a failed run, with the losses of that run. `gradients` are those that blame the step.

    `surfaces` are those that it read, with their current values; `references` are expected answers of other cases.
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
        """Whether the step wrote the answer: no step that depends on it reads a surface."""
        return self.step.id in _find_answering_steps(ById(self.trace))

    @property
    def is_whole(self) -> bool:
        """Whether the trace has the complete input and output of the step: no blobs, no masked secrets."""
        sides = (self.step.input, self.step.output)
        return not any(each.blobs or MASK in snapshot_text(each) for each in sides)


@lru_cache(maxsize=64)
def _find_answering_steps(trace: ById[ExecutionTrace]) -> frozenset[str]:
    """The steps that no step which reads a surface depends on. All steps of a run are asked about."""
    answering = {step.id for step in trace.value.steps}
    for step in reversed(trace.value.steps):
        if step.surface_reads != {} or step.id not in answering:
            answering.difference_update(step.predecessors)
    return frozenset(answering)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The output that a step should have had, if it is known, and the reason."""

    kind: CorrectionKind
    output: Json = None
    reason: str = ""


class Corrector(Protocol):
    """Corrects one step. Called for blamed steps of a sample of failed runs, concurrently; an error skips one step."""

    def correct(self, request: CorrectionRequest) -> Awaitable[Correction] | Correction:
        """Return the output that the step could have had with the input it got."""


FindLostValues: TypeAlias = Callable[[CorrectionRequest, str], Sequence[str]]
"""Finds what a corrected output contains although it had been lost before the step, which could not know it."""


def parse_like(text: str, output: Snapshot) -> Json:
    """Return a corrected text in the form of the step's output: as text, or parsed as data. Raises ValueError."""
    if output.text is not None or output.data is None:
        return text
    from promptiter.evaluation.metrics.json_match import parse_json

    return parse_json(text)
