"""Errors of the HTTP API: `{"error": "..."}`, with the problems of an invalid run one by one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from starlette.responses import JSONResponse

from promptiter.errors import (
    ManagerClosedError,
    RequestError,
    RunEndedError,
    RunLockedError,
    RunRefusedError,
    UnknownAppError,
    UnknownRunError,
    nearest,
)
from promptiter.server.bodies import MAX_PROBLEMS
from promptiter.wording import shorten

MAX_PROBLEM = 1000
"""The most characters of one problem."""

logger = logging.getLogger(__name__)


class HttpError(Exception):
    """An answer other than success. After one that `closes`, the connection ends: its body was not read."""

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None, closes: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {**(headers or {}), **({"Connection": "close"} if closes else {})}


def answer_error(error: Exception, *, wanted: Mapping[str, str], apps: Iterable[str] = ()) -> JSONResponse:
    """The answer for an error of ours. `wanted` are the app, the run and so on that were asked for.

    `apps` are those whose names the requester may know.

    What is about the server, such as its folders and databases, is logged and not sent.
    """
    match error:
        case HttpError():
            return JSONResponse({"error": str(error)}, error.status, headers=error.headers)
        case RequestError():
            problems = [_cut(each) for each in error.problems[:MAX_PROBLEMS]]
            text = str(RequestError(problems, subject=error.subject))
            if len(problems) == 1:
                text = f"{error.subject} cannot start: {problems[0]}"
            return JSONResponse({"error": text, "problems": problems}, 400)
        case UnknownAppError():
            app = wanted.get("app", "")
            return JSONResponse({"error": f"unknown app {shorten(app)}{nearest(app, apps)}"}, 404)
        case UnknownRunError():
            named = [f"{name} {shorten(wanted[key])}" for key, name in _NAMES if key in wanted]
            return JSONResponse({"error": f"there is no {' of the '.join(named) or 'such run'}"}, 404)
        case RunRefusedError():
            return JSONResponse({"error": str(error), "problems": list(error.reasons[:MAX_PROBLEMS])}, 409)
        case RunEndedError():
            return JSONResponse({"error": str(error)}, 409)
        case RunLockedError():
            text = (
                f"the run {shorten(wanted.get('run_id'))} is in progress; cancel it first, and wait until it has ended"
            )
            return JSONResponse({"error": text}, 409)
        case ManagerClosedError():
            return JSONResponse({"error": "the server is stopping; ask the next one"}, 503)
    logger.error("a request failed: %s", error)
    return JSONResponse({"error": "the server cannot do this now; its log says why"}, 503)


def _cut(problem: str) -> str:
    """A problem may quote what was sent, in a key for example."""
    return problem if len(problem) <= MAX_PROBLEM else f"{problem[:MAX_PROBLEM]}… ({len(problem):,} characters)"


_NAMES = (("digest", "trace"), ("run_id", "run"), ("app", "app"))
