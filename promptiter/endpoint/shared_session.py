"""One session for clients that cannot say which case they run in, because they only read the environment.

Their calls belong to the case that is running, if there is just one. While several run, they are refused: a guess would
count calls under the wrong case.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from promptiter.endpoint.http_messages import RefusedRequestError
from promptiter.endpoint.sessions import EndpointCall, EndpointSession, add_session, list_sessions
from promptiter.endpoint.standalone import NO_CASE
from promptiter.llm.gateway import Gateway, find_active_gateway
from promptiter.llm.litellm import keep_addresses
from promptiter.llm.messages import ModelRequest


class SharedSession(EndpointSession):
    """Passes calls on to the session of the only running case. Without one, its own gateway answers."""

    async def ask(self, request: ModelRequest, *, node: str = "", conversation: str = "") -> EndpointCall:
        running = [session for session in list_sessions() if not isinstance(session, SharedSession)]
        if len(running) > 1:
            message = (
                "several cases are running, and this client cannot say which is its own; set evaluation.concurrency "
                "to 1, or use promptiter.instrument(client)"
            )
            raise RefusedRequestError(409, message, kind="conflict")
        if running:
            return await running[0].ask(request, node=node, conversation=conversation)
        return await super().ask(request, node=node, conversation=conversation)


def share_session() -> Mapping[str, str]:
    """Lead clients that are created from now on to the gateway, by the environment variables of this process.

    Returns these variables. Models that litellm serves keep the addresses that the environment had before.
    """
    sessions = (each for each in list_sessions() if isinstance(each, SharedSession))
    session: EndpointSession | None = next(sessions, None)
    if session is None:
        gateway = find_active_gateway() or Gateway()
        session = add_session(
            lambda server: SharedSession(NO_CASE, gateway, server, numbers_calls=False, on_call=lambda _: None)
        )
        keep_addresses(os.environ)
    given = {name: value for name, value in session.environment.items() if not name.endswith("_API_KEY")}
    os.environ.update(given)
    return given
