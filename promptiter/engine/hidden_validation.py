"""What a search sees of validation: nothing, unless it says so. Then it gets a ValidationRecord."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.profile import Profile
from promptiter.runlog.run_state import RunState


@dataclass(frozen=True, slots=True)
class SessionProfile:
    """A profile of a run as its search sees it: without its validation."""

    profile: Profile

    @property
    def validation(self) -> NoReturn:
        raise build_hidden_error("validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRecord:
    """What validation says: its cases, and the `state` of the run, which changes with every event.

    The state has the validation of the baseline, of the accepted profile and of the candidates of the round, and the
    decisions with their reasons.
    """

    eval_set: EvalSet
    state: RunState

    @property
    def accepted(self) -> Evaluation:
        """The validation of the best profile so far."""
        assert self.state.accepted is not None, "the baseline is validated before a search starts"
        return self.state.accepted.validation


def build_hidden_error(name: str) -> AttributeError:
    """The error of a search that reads validation results without saying so."""
    return AttributeError(
        f"{name!r} is hidden from the search, so that validation cases can show whether a gain holds for new cases; "
        "a search that needs validation results calls `await session.read_validation()`, and without a test set its "
        "verdict is then at most improved_on_validation"
    )
