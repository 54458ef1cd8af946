"""The limits of a run whose search ends by itself: they are those of the search, unless the request sets others."""

from __future__ import annotations

from dataclasses import replace

from promptiter.engine.outline import OutlinedSearch
from promptiter.engine.request import RunRequest
from promptiter.evaluation.result import get_best_value
from promptiter.policies.stopping import TargetScore


def find_own_limit(search: object) -> int | None:
    """The most rounds that a search makes before it ends by itself; None if only a limit ends it."""
    if not isinstance(search, OutlinedSearch):
        return None
    try:
        return search.outline().max_rounds
    except Exception:  # noqa: BLE001 - it may be the user's code, and a run can start without an outline
        return None


def complete_limits(request: RunRequest, search: object) -> RunRequest:
    """Return a request with the limits of its search.

    A search such as coordinate descent makes many small rounds, most of which accept nothing, and ends when a whole
    cycle of them does. The usual limits, four rounds and three without an accepted candidate, would cut it short. A
    perfect validation still ends it.
    """
    most = find_own_limit(search)
    if most is None:
        return request
    stop = request.stop
    if stop is None and request.goal.kind == "score":
        stop = TargetScore(get_best_value(request.objective))
    rounds = most + 1 if request.max_rounds is None else request.max_rounds  # one more, so that the search ends itself
    return replace(request, stop=stop, max_rounds=rounds)
