"""CallbackStop: a function of the user that ends the search, such as a monitor of a service or a kill switch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from promptiter.concurrency import is_async
from promptiter.errors import SetupError
from promptiter.policies.stop_decision import StopDecision, stop_if
from promptiter.policies.stopping import ComposableStop, Progress
from promptiter.wording import shorten

UNLABELED = "completed"
"""The stop reason of a function that has no label."""


@dataclass(frozen=True, slots=True, repr=False)
class CallbackStop(ComposableStop):
    """Stops when the function returns true, with its `label` as the stop reason. It is asked after each round.

    A search that has a state of its own, such as GEPA, calls it with that state; otherwise it gets None.
    """

    callback: Callable[[Any], object]
    label: str = UNLABELED

    def __post_init__(self) -> None:
        if not callable(self.callback):
            raise SetupError(f"a stopper is {shorten(self.callback)}; give a function that returns whether to stop")
        if is_async(self.callback):
            raise SetupError(f"the stopper {self._name} is async; give a function that returns whether to stop at once")

    @staticmethod
    def of(callback: Callable[[Any], object]) -> CallbackStop:
        """The policy of a function, with the label that it may have as `label`."""
        return CallbackStop(callback, str(getattr(callback, "label", "") or UNLABELED))

    @property
    def reason(self) -> str:
        """The label, as GEPA asks for it."""
        return self.label

    def __call__(self, state: Any = None) -> bool:
        return bool(self.callback(state))

    def decide(self, progress: Progress) -> StopDecision:  # noqa: ARG002 - the callback decides alone
        return stop_if(self(), self.label, f"the stopper {self._name} asked for it")

    @property
    def _name(self) -> str:
        return str(getattr(self.callback, "__name__", type(self.callback).__name__))

    def __repr__(self) -> str:
        return f"CallbackStop({self._name}, label={self.label!r})"
