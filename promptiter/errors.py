"""Errors, grouped by who can fix them.

PromptiterError
├── SetupError                  the user's input is wrong; nothing was spent
│   ├── InvalidStructureError   a StructureSnapshot that contradicts itself
│   ├── UnknownSurfaceError     a surface id that the structure does not have
│   ├── SurfaceValueError       a value that a surface cannot take
│   ├── StructureMismatchError  a profile of another structure
│   ├── EvalSetError            an eval set that cannot be read or contradicts itself
│   ├── MetricError             a metric that is configured wrongly
│   ├── UnknownNameError        a metric, evaluator, agent or model that is not registered
│   ├── EditedSourceError       a file was edited while a candidate was in place
│   ├── RequestError            an invalid run request; lists every problem
│   ├── RunLockedError          another process runs it, or has taken it over
│   ├── StoreError              the database of a run cannot be used for now; resume the run when it is back
│   ├── InvalidArgumentError    an argument of `promptiter.optimize`; a ValueError, too
│   ├── ArgumentTypeError       an argument of the wrong kind; a TypeError, too
│   ├── RunRefusedError         a manager cannot continue a run, and why
│   └── ChangedInputsError      a run cannot be resumed: its inputs have changed
├── AgentError                  a mistake in the agent's graph: an endless loop, an unknown route
│   └── AnswerError             an agent returned None, or something that is not data
├── CommandError                a command was ended, failed, or answered with something unusable
├── ServiceError                an HTTP service failed, or answered with something unusable
├── BrokenSetupError            each of the first cases failed by a mistake in the code or the settings
├── ModelError                  a model or tool call failed after all retries
│   ├── TransientModelError     may work later, so it is retried; `retry_after_s` is what the server asked for
│   │   ├── RateLimitedError        429
│   │   ├── ModelTimeoutError       no answer in time
│   │   └── ModelUnavailableError   5xx, or no connection
│   ├── BadRequestError         the server refused the request itself: a retry cannot help
│   │   ├── AccessDeniedError       401 or 403: the key is wrong, has expired, or may not do this
│   │   └── ModelNotFoundError      404: the server has no such model, or the address is wrong
│   ├── ToolFailedError         a tool raised; the message is its error
│   └── BadAnswerError          an answer that does not fit its schema, also after repair
├── NotAdoptedError             a run shows no improvement, so it is not applied (promptiter.runs.apply)
├── ApplyError                  applying or reverting a run failed, and was rolled back as far as possible
├── RollbackError               writing several prompts failed, and so did restoring one of them
├── RunnerError                 a teacher or judge that is an agent or a function gave no answer
├── BudgetEndedError            a call did not fit into what is left of a budget
├── StopRequestedError          the user asked to stop, so nothing further is started
├── OutageError                 a model's service failed for too many cases to judge the agent
├── StageError                  a stage of the backward pass failed on every call
├── RunFailedError              a run ended in an error; carries its result so far (promptiter.engine)
├── TrackerError                an experiment tracker failed; the run continues without it
├── JournalError                the log of a run is damaged, or cannot be written
├── NonDeterministicSearchError  a resumed run asked for something else than the first time
└── UnexpectedCallError         a scripted model has no answer for a call
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MAX_LISTED = 8
"""Maximum number of known names that an error lists."""


class PromptiterError(Exception):
    """The base class of all errors. The message says what happened, with which value, and what to do."""


class SetupError(PromptiterError):
    """The user's input is wrong; nothing was spent."""


class InvalidStructureError(SetupError):
    """A StructureSnapshot that contradicts itself."""


class UnknownSurfaceError(SetupError):
    def __init__(self, surface_id: str, *, known: Iterable[str]) -> None:
        ids = list(known)
        if below := [each for each in ids if each.startswith(f"{surface_id}#")]:
            problem = f"{surface_id!r} is a node, not a surface; its surfaces are {', '.join(below)}"
        else:
            listed = f"; known are {', '.join(ids)}" if 0 < len(ids) <= MAX_LISTED else ""
            problem = f"unknown surface {surface_id!r}{nearest(surface_id, ids)}{listed}"
        super().__init__(problem)
        self.surface_id = surface_id


class SurfaceValueError(SetupError):
    def __init__(self, surface_id: str, problem: str) -> None:
        super().__init__(f"surface {surface_id!r} cannot take this value: {problem}")
        self.surface_id = surface_id
        self.problem = problem


class StructureMismatchError(SetupError):
    """A profile of another structure."""


class EvalSetError(SetupError):
    """An eval set that cannot be read or contradicts itself."""


class MetricError(SetupError):
    """A metric with a wrong configuration."""


class UnknownNameError(SetupError):
    def __init__(self, what: str, names: Iterable[str], *, known: Iterable[str]) -> None:
        known = sorted(known)
        listed = ", ".join(f"{name!r}{nearest(name, known)}" for name in names)
        super().__init__(f"unknown {what}: {listed}; known are {', '.join(known) or 'none'}")


class EditedSourceError(SetupError):
    """A file was edited while a candidate was in place. The edit was not overwritten."""


class ApplyError(PromptiterError):
    """Applying or reverting a run failed. The message lists what could not be rolled back."""


class InvalidArgumentError(SetupError, ValueError):
    """An argument of `promptiter.optimize`, or a file that it names, cannot be used."""


class ArgumentTypeError(SetupError, TypeError):
    """An argument of `promptiter.optimize` is of the wrong kind."""


class RollbackError(PromptiterError):
    """Writing several prompts failed, and so did restoring some of them. `problems` has a sentence for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"some prompts could not be restored, so check them: {'; '.join(self.problems)}")


class RequestError(SetupError):
    """An invalid request for a run, or for another `subject`. `problems` lists everything that is wrong with it."""

    def __init__(self, problems: Iterable[str], *, subject: str = "the run") -> None:
        self.problems, self.subject = tuple(problems), subject
        listed = "".join(f"\n  - {problem}" for problem in self.problems)
        count = "a problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"{subject} cannot start, it has {count}:{listed}")


class RunLockedError(SetupError):
    """Another process runs it, or has taken it over."""


class StoreError(SetupError):
    """The database of a run cannot be used for now. What is stored is kept: resume the run when it is back."""


class UnknownRunError(SetupError):
    """A store has no run with an id."""


class UnknownAppError(SetupError):
    """A manager has no app with a name."""


class ManagerClosedError(SetupError):
    """A manager is closing, and starts no more runs."""

    def __init__(self) -> None:
        super().__init__("the manager is closed; make a new one")


class RunEndedError(SetupError):
    """A run that has ended cannot be stopped, cancelled or resumed."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the run {run!r} has ended, so it cannot be stopped, cancelled or resumed")


class RunRefusedError(SetupError):
    """A run cannot be continued by this manager. `reasons` has a sentence for each reason."""

    def __init__(self, run: str, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"the run {run!r} cannot be continued: {'; '.join(self.reasons)}")


class RunCancelledError(PromptiterError):
    """A run was cancelled before its success could be stored."""


class ChangedInputsError(SetupError):
    """A run cannot be resumed because its inputs have changed. `changes` has a sentence for each."""

    def __init__(self, run: str, changes: Iterable[str]) -> None:
        self.changes = tuple(changes)
        listed = "".join(f"\n  - {change}" for change in self.changes)
        super().__init__(
            f"the run {run!r} cannot be resumed, its inputs have changed:{listed}\n"
            "Undo the changes and resume, or start a new run with `promptiter rerun` or `promptiter run`"
        )


class AgentError(PromptiterError):
    """A mistake in the agent's graph: an endless loop, an unknown route."""


class AnswerError(AgentError):
    """An agent returned None, or something that is not data."""


class CommandError(PromptiterError):
    """A command was ended, failed, or answered with something unusable."""


class ServiceError(PromptiterError):
    """An HTTP service failed, or answered with something unusable."""


class BrokenSetupError(PromptiterError):
    """Each of the first cases failed by a mistake in the code or the settings. Fix it, and resume the run."""


class ModelError(PromptiterError):
    """A model or tool call failed after all retries. `status` is that of the server's answer, if it gave one."""

    status: int | None = None


class TransientModelError(ModelError):
    """A failure that may pass, so the call is retried; after `retry_after_s` if the server said so.

    It `may_be_billed` if the request was sent and the server did not refuse it, such as after a timeout.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None, may_be_billed: bool | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.may_be_billed = isinstance(self, ModelTimeoutError) if may_be_billed is None else may_be_billed


class RateLimitedError(TransientModelError):
    """The server asked for a pause."""


class ModelTimeoutError(TransientModelError):
    """No answer in time."""


class ModelUnavailableError(TransientModelError):
    """The server failed, or could not be reached."""


class BadRequestError(ModelError):
    """The server refused the request itself; a retry cannot help."""


class AccessDeniedError(BadRequestError):
    """The key is wrong, has expired, or may not do this."""


class ModelNotFoundError(BadRequestError):
    """The server has no such model, or the address is wrong."""


class ToolFailedError(ModelError):
    """A tool raised; the message is its error."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class BadAnswerError(ModelError):
    """An answer that does not fit its schema, also after repair."""


class RunnerError(PromptiterError):
    """A teacher or judge that is an agent or a function gave no answer. It `is_outage` if its service failed."""

    def __init__(self, message: str, *, is_outage: bool = False) -> None:
        super().__init__(message)
        self.is_outage = is_outage


class BudgetEndedError(PromptiterError):
    """A call did not fit into what is left of a budget. `cap` is the one that ended: max_calls, max_tokens, max_usd.

    `message` is the error without the advice.
    """

    def __init__(self, message: str, *, cap: str = "budget", advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.message = message
        self.cap = cap


class StopRequestedError(PromptiterError):
    """The user asked to stop, so no further case run or stage call is started. The run can be resumed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"stopped on request: {reason}")


class OutageError(PromptiterError):
    """The service of a model failed for too many cases to judge the agent. Resume the run when it is back.

    `message` is the error without the advice.
    """

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.message = message


class StageError(PromptiterError):
    """A stage of the backward pass failed on every call."""


class TrackerError(PromptiterError):
    """An experiment tracker failed. The run continues without it."""


class JournalError(PromptiterError):
    """The log of a run is damaged, or cannot be written; the message names the file, and the line if one is bad."""


class NonDeterministicSearchError(PromptiterError):
    """A resumed run asked for something else than the first time."""


class UnexpectedCallError(PromptiterError):
    """A scripted model has no answer for a call."""


FATAL_ERRORS = (BudgetEndedError, StopRequestedError, UnexpectedCallError, SetupError)
"""Errors that end an evaluation or a run, whichever case, step or surface they occur at."""


def is_outage_of_store(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that a store cannot be used for now."""
    while error is not None and not isinstance(error, StoreError):
        error = error.__cause__
    return error is not None


def nearest(wanted: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """` (did you mean 'planner#instruction'?)`, or nothing. Names below a similarity of `cutoff` are too far away."""
    found = get_close_matches(wanted, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {found[0]!r}?)" if found else ""
