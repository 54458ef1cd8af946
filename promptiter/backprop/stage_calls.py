"""Calls of the stages, which may be the user's own: a failed call skips one step or surface, not the whole pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from promptiter.concurrency import call_any, is_async
from promptiter.errors import FATAL_ERRORS, StageError
from promptiter.stages.contracts import AttributeRequest, Attributor, BackwardResult, BatchAttributor
from promptiter.wording import shorten

T = TypeVar("T")

Redact: TypeAlias = Callable[[str], str]
"""Returns a text without secrets."""


async def call_stage(method: Callable[[Any], Awaitable[T] | T], request: object, *, returns: type[T]) -> T:
    """Call the method of a stage, in a thread if it is synchronous. TypeError if it returns something else."""
    try:
        call: Any = method(request) if is_async(method) else call_any(method, request)
        answer = await call
    except SystemExit as error:  # asyncio would end the whole program
        raise StageError(f"{_name_method(method)}() called sys.exit({error.code!r})") from error
    if not isinstance(answer, returns):
        raise TypeError(
            f"{_name_method(method)}() returned {shorten(answer)}; return a value of type {returns.__name__}"
        )
    return answer


def check_surface_id(surface_id: str, *, asked: str, method: Callable[..., object]) -> None:
    """Raise ValueError if a stage answers about another surface than it was asked about. It may leave the id empty."""
    if surface_id not in ("", asked):
        raise ValueError(
            f"{_name_method(method)}() was asked about {asked!r} and answered about {surface_id!r}; "
            "return the id of the surface in the request"
        )


async def call_attributor(attributor: Attributor, request: AttributeRequest) -> list[BackwardResult]:
    """Call an Attributor, whose answer is a list of results."""
    return _check_results(await call_stage(attributor.attribute, request, returns=list), attributor.attribute)


async def call_batch_attributor(
    attributor: BatchAttributor, requests: Sequence[AttributeRequest]
) -> list[list[BackwardResult]]:
    """Call an Attributor with several traces. Its answer is a list of results for each of them."""
    method = attributor.attribute_batch
    answers = await call_stage(method, requests, returns=list)
    if len(answers) != len(requests) or not all(isinstance(each, list) for each in answers):
        raise TypeError(
            f"{_name_method(method)}() returned {shorten(answers)} for {len(requests)} traces; return a list of "
            "BackwardResult for each"
        )
    return [_check_results(each, method) for each in answers]


def _check_results(results: Sequence[object], method: Callable[..., object]) -> list[BackwardResult]:
    if wrong := [each for each in results if not isinstance(each, BackwardResult)]:
        name = _name_method(method)
        raise TypeError(f"{name}() returned a list with {shorten(wrong[0])}; return a list of BackwardResult")
    return [each for each in results if isinstance(each, BackwardResult)]


async def call_or_error(call: Callable[[], Awaitable[T]], redact: Redact) -> tuple[T | None, str | None]:
    """Return the stage's result and None, or None and its error. Raises errors that are not the stage's fault."""
    try:
        return await call(), None
    except FATAL_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001 - a stage may be the user's own; its failed calls are skipped
        return None, redact(f"{type(error).__name__}: {error}")


def _name_method(method: Callable[..., object]) -> str:
    """`MyStage.backward`, with the class of the stage."""
    owner = getattr(method, "__self__", None)
    name = getattr(method, "__name__", type(method).__name__)
    return name if owner is None else f"{type(owner).__name__}.{name}"
